"""`prompt_logprobs` through the server, against the log-softmax of plain transformers, beside other requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import reference_model
from triton_calls import Stream

from triton_mblt.text.tokenizer import TextTokenizer

pytestmark = pytest.mark.e2e

PROMPT = "the rain in the night is a long story, and an open end is not the worst of it. " * 2


@pytest.mark.parametrize("model", ["mblt", "mblt_ensemble"])
def test_prompt_logprobs_equal_transformers(stream: Stream, package: Path, model: str) -> None:
    others = [stream.send("mblt", text=f"other {n}", sampling={"max_tokens": 60, "ignore_eos": True}) for n in range(3)]
    place = {} if model == "mblt" else {"sequence": 77}
    sampling = {"temperature": 0, "max_tokens": 3, "prompt_logprobs": 2, "ignore_eos": True}
    reply = stream.ask(model, text=PROMPT, sampling=sampling, stream=True, **place)
    assert reply.error == ""
    assert ["prompt_logprobs" in one for one in reply.responses] == [True] + [False] * (len(reply.responses) - 1)
    scored = json.loads(reply.responses[0]["prompt_logprobs"])
    ids = TextTokenizer.load(package).encode(PROMPT)
    with torch.inference_mode():
        expected = torch.log_softmax(reference_model("llama")(torch.tensor([ids])).logits[0], dim=-1)
    assert len(scored) == len(ids)
    assert scored[0] is None
    for position in range(1, len(ids)):
        row, entry = expected[position - 1], scored[position]
        assert entry[str(ids[position])]["logprob"] == pytest.approx(float(row[ids[position]]), abs=1e-4)
        assert {str(int(one)) for one in row.topk(2).indices} <= set(entry)
    assert all(other.wait().error == "" for other in others)
