"""A conversation through the real server computes its new tokens only, and says what a cold run says."""

from __future__ import annotations

import pytest
from lm_control import Control
from tiny_models import greedy, reference_model
from triton_calls import Stream

pytestmark = pytest.mark.e2e

COUNT = 10
TURNS = 5


def test_turns_go_on_from_the_slot(stream: Stream, control: Control) -> None:
    model = reference_model("llama")
    text = [7 + (13 * place) % 200 for place in range(60)]
    spent = []
    for turn in range(TURNS):
        before = control.stats()["workers"][0]["engine"]["device_tokens"]
        reply = stream.ask(
            "lm", ids=text, sequence="a conversation", start=turn == 0, end=turn == TURNS - 1, return_token_ids=True,
            return_num_cached_tokens=True,
            parameters={"cache_salt": "this test"},  # other tests leave KV in the slots
            sampling={"temperature": 0, "max_tokens": COUNT, "ignore_eos": True}, exclude_input_in_output=True,
        )  # fmt: skip
        assert reply.error == ""
        answer = [token for one in reply.responses for token in one["token_ids"]]
        assert answer == greedy(model, text, COUNT, stop_at_eos=False)
        assert reply.responses[0]["num_cached_tokens"] == (len(text) - 4 if turn else 0)
        spent.append(control.stats()["workers"][0]["engine"]["device_tokens"] - before)
        text = [*text, *answer, 9, 8 + turn, 11]
    assert spent[1:] == [1 + 3 + COUNT - 1] * (TURNS - 1)
