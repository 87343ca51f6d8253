"""C113: the additional outputs of vllm_backend, streaming or not."""

from __future__ import annotations

import json
import math

import pytest
from triton_calls import Reply, Stream

pytestmark = pytest.mark.e2e

SIX = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": 2}
ALL = {
    "return_finish_reason": True,
    "return_cumulative_logprob": True,
    "return_logprobs": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}
NAMES = {"finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"}
PROMPT = "In this example,"


@pytest.fixture(params=[("mblt", True), ("mblt", False), ("mblt_ensemble", True)], ids=lambda p: f"{p[0]}-{p[1]}")
def reply(request: pytest.FixtureRequest, stream: Stream) -> Reply:
    model, streaming = request.param
    place = {} if model == "mblt" else {"sequence": "outputs"}
    found = stream.ask(model, text=PROMPT, sampling=SIX, stream=streaming, **ALL, **place)
    assert found.error == ""
    assert len(found.responses) > 1 if streaming else len(found.responses) == 1
    return found


def test_counts_are_deltas(reply: Reply) -> None:
    assert reply.tokens == 6
    assert all(one["num_output_tokens"] > 0 for one in reply.responses)
    assert {one["num_input_tokens"] for one in reply.responses} == {16 - 1}  # "in" is one token of the tiny vocabulary


def test_the_finish_reason_is_none_until_the_last(reply: Reply) -> None:
    assert [one["finish_reason"] for one in reply.responses] == ["None"] * (len(reply.responses) - 1) + ["length"]


def test_logprobs_are_one_object_per_token(reply: Reply) -> None:
    tokens = [token for one in reply.responses for token in json.loads(one["logprobs"])]
    assert len(tokens) == 6
    total = 0.0
    for one in reply.responses:
        for token in json.loads(one["logprobs"]):
            assert 2 <= len(token) <= 3
            assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in token.values())
            (best,) = [entry for entry in token.values() if entry["rank"] == 1]
            total += best["logprob"]  # greedy: the best is the chosen one
    assert math.isclose(reply.responses[-1]["cumulative_logprob"], total, rel_tol=1e-4)


def test_cumulative_logprobs_fall(reply: Reply) -> None:
    sums = [one["cumulative_logprob"] for one in reply.responses]
    assert sums == sorted(sums, reverse=True)
    assert len(set(sums)) == len(sums)


def test_nothing_is_sent_that_was_not_asked_for(stream: Stream) -> None:
    for flags in ({}, dict.fromkeys(ALL, False)):
        for model, place in (("mblt", {}), ("mblt_ensemble", {"sequence": "quiet"})):
            reply = stream.ask(model, text=PROMPT, sampling=SIX, stream=True, **flags, **place)
            assert {name for one in reply.responses for name in one} == {"text_output"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_output_comes_alone(stream: Stream, name: str) -> None:
    reply = stream.ask("mblt", text=PROMPT, sampling=SIX, stream=True, **{f"return_{name}": True})
    assert all(set(one) == {"text_output", name} for one in reply.responses)


def test_logprobs_without_the_sampling_field_are_null(stream: Stream) -> None:
    reply = stream.ask("mblt", text=PROMPT, sampling={"max_tokens": 3}, return_logprobs=True)
    assert {one["logprobs"] for one in reply.responses} == {"null"}
