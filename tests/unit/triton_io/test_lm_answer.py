from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest
from triton_python_backend_utils import Request, named

from triton_mblt.core.errors import NpuFault, parse_error
from triton_mblt.core.events import Output, TokenLogprob
from triton_mblt.core.sampling_params import SamplingDefaults, SamplingLimits
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.lm_answer import Answer
from triton_mblt.triton_io.lm_request import Door
from triton_mblt.triton_io.sender import Lanes, Responder

ALL = {
    f"return_{name}": True
    for name in (
        "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens", "token_ids",
    )
}  # fmt: skip


def responses(inputs: dict[str, Any], outputs: list[Output], **parameters: Any) -> list[dict[str, Any]]:
    """What a client gets; the last response must be the only final one."""
    request = Request({"input_ids": [1], **inputs}, parameters=parameters)
    arrival = Door(SamplingDefaults(), SamplingLimits()).read(request, wire.identity(request), 1)
    answer = Answer(Responder(request, "r1"), arrival)
    for output in outputs:
        answer.send(output)
    assert [flags for _, flags in request.sender.sent] == [0] * (len(outputs) - 1) + [1]
    return [
        {"error": sent.error().message()} if sent.has_error() else named(sent)
        for sent, _ in request.sender.sent
        if sent
    ]


def test_text_alone_when_nothing_else_was_asked_for() -> None:
    got = responses({"stream": True}, [Output(1, "a", (5,)), Output(1, "", (0,), finish_reason="stop")])
    assert got == [{"text_output": b"a"}, {"text_output": b""}]


def test_the_echo_leads_the_first_response() -> None:
    got = responses({"prompt_text": "x y "}, [Output(1, "a", (5,), finish_reason="length")])
    assert got == [{"text_output": b"x y a"}]


def test_all_outputs_are_of_their_response() -> None:
    chosen, best = TokenLogprob(5, -1.5, 2, "a"), TokenLogprob(6, -0.5, 1, "ž")
    outputs = [
        Output(1, "a", (5, 7), cumulative_logprob=-1.5, logprobs=((chosen, best), (best,)), num_input_tokens=3),
        Output(1, "b", (6,), finish_reason="length", cumulative_logprob=-2.0, logprobs=((best,),), num_input_tokens=3),
    ]
    first, last = responses({"stream": True, **ALL}, outputs, logprobs=1)
    assert (first["finish_reason"], last["finish_reason"]) == (b"None", b"length")
    assert (first["num_output_tokens"], last["num_output_tokens"]) == (2, 1)
    assert (first["num_input_tokens"], first["token_ids"]) == (3, [5, 7])
    assert math.isclose(last["cumulative_logprob"], -2.0)
    assert json.loads(first["logprobs"])[0] == {
        "5": {"logprob": -1.5, "rank": 2, "decoded_token": "a"},
        "6": {"logprob": -0.5, "rank": 1, "decoded_token": "ž"},
    }
    assert len(json.loads(last["logprobs"])) == 1


def test_logprobs_are_null_without_the_sampling_field() -> None:
    (only,) = responses({"return_logprobs": True}, [Output(1, "a", (5,), finish_reason="stop")])
    assert only["logprobs"] == b"null"


@pytest.mark.parametrize("as_text", [False, True])
def test_an_error_ends_the_answer(as_text: bool) -> None:
    failed = Output(1, "", (), error=NpuFault("the device is gone").info("r1"))
    _, last = responses({"stream": True}, [Output(1, "a", (5,)), failed], errors_as_text=as_text)
    info = parse_error(last["text_output"].decode() if as_text else last["error"])
    assert info is not None
    assert (info.code, info.message, info.request_id) == ("INTERNAL", "the device is gone", "r1")
    assert last.get("finish_reason") == (b"error" if as_text else None)


def test_a_bug_in_the_middle_of_a_running_answer_reaches_the_front_as_text() -> None:
    """An error response after others would leave the front waiting for ever."""
    inputs = {"input_ids": [1], "stream": True, "return_token_ids": True}
    request = Request(inputs, parameters={"errors_as_text": True})
    arrival = Door(SamplingDefaults(), SamplingLimits()).read(request, wire.identity(request), 1)
    answer, lanes = Answer(Responder(request, "r1"), arrival), Lanes(1, "lane")
    for output in (Output(1, "a", (5,)), Output(1, "b", (2**70,))):  # no INT32 takes the second
        lanes.put(1, answer, partial(answer.send, output))
    lanes.close()
    (_, (last, _)) = request.sender.sent
    assert last is not None
    assert not last.has_error()
    assert named(last)["finish_reason"] == b"error"
    info = parse_error(named(last)["text_output"].decode())
    assert info is not None
    assert (info.code, info.request_id, request.sender.finals) == ("INTERNAL", "r1", 1)
