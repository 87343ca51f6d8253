"""The front's own decisions: its tokens, its leases, and a client that leaves at an awkward moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triton_python_backend_utils import InferenceRequest, InferenceResponse, Request, Tensor

from triton_mblt.core.errors import ErrorInfo, NotFound
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.front_leases import FrontLeases
from triton_mblt.triton_io.mblt_model import Job, MbltModel
from triton_mblt.triton_io.sender import Responder

LIMIT_S = 10


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the front asks of the ensemble, which answers with one word."""
    answer = {"text_output": "word", "finish_reason": "stop"}
    tensors = [Tensor(name, [text.encode()]) for name, text in answer.items()]
    monkeypatch.setattr(InferenceRequest, "answers", [InferenceResponse(tensors)])
    monkeypatch.setattr(InferenceRequest, "made", [])
    return InferenceRequest.made


@pytest.fixture
def front(tmp_path: Path) -> Iterator[MbltModel]:
    model_json = tmp_path / "lm" / "1" / "model.json"
    model_json.parent.mkdir(parents=True)
    model_json.write_text(json.dumps({"model": "m", "npu": "emulated"}))
    model = MbltModel()
    model.initialize({"model_config": "{}", "model_name": "mblt", "model_repository": str(tmp_path / "mblt")})
    yield model
    model.finalize()


@pytest.mark.parametrize(
    ("given", "kept"), [({}, False), ({"abort_token": ""}, False), ({"abort_token": "mine"}, True)]
)
def test_every_request_has_a_token_to_abort_it(
    front: MbltModel, calls: list[dict[str, Any]], given: dict[str, str], kept: bool
) -> None:
    request = Request({"text_input": "hi"}, parameters=given)
    front.execute([request])
    front.finalize()
    (call,) = calls
    token = call["parameters"]["abort_token"]
    assert (token == "mine") if kept else len(token) == 32
    assert (request.sender.texts(), request.sender.finals) == (["word"], 1)


def test_a_client_that_leaves_while_its_request_starts(front: MbltModel, calls: list[dict[str, Any]]) -> None:
    """Either the request is sent on and aborted, or it is ended here and never sent on."""

    class Slow(Responder):
        def fail(self, info: ErrorInfo) -> None:
            front._relay(job)  # the pool gets to it just now
            super().fail(info)

    request = Request({"text_input": "hi"})
    who = wire.Identity("r1", "s", start=True, end=True)
    job = Job(1, Slow(request, "r1"), {}, who, {"abort_token": "t"}, renews=False, unclaimed=[True])
    front._client_left(job)
    assert calls == []
    ((answer, _),) = request.sender.sent
    assert answer is not None
    assert answer.has_error()
    assert request.sender.finals == 1


def test_a_renewal_that_fails_keeps_no_other_from_being_sent() -> None:
    renewed = threading.Event()

    def control(request: dict[str, Any]) -> None:
        if request["sequence_id"] == "bad":
            raise NotFound("no answer in time")
        renewed.set()

    leases = FrontLeases(control, lease_s=0.03)
    leases.hold(1, {"sequence_id": "bad"})
    leases.hold(2, {"sequence_id": "good"})
    try:
        assert renewed.wait(LIMIT_S)
    finally:
        leases.close()
