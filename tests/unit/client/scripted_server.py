"""A gRPC server with Triton's service whose answers a test writes down. It records what the client sends.

A turn's script is a list of steps: a `str` is a response with that text (one token), `Fail(text)` ends with an error,
`WAIT` holds until the request is aborted through lm_control and then ends it as CANCELLED, `PART` holds until `go()`.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

CLIENT = Path(__file__).resolve().parents[3] / "client"
WAIT = object()
PART = object()
LIMIT_S = 20.0


@dataclass(frozen=True)
class Fail:
    text: str


@dataclass
class Seen:
    """One request as the server got it."""

    model: str
    id: str
    tensors: dict[str, Any]
    parameters: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return json.loads(self.tensors["messages"])

    @property
    def sampling(self) -> dict[str, Any]:
        return json.loads(self.tensors["sampling_parameters"])

    def named(self) -> tuple[str, str, str]:
        """The request that a control call is about: sequence, request id, token."""
        body = json.loads(self.tensors["request"])
        return body["sequence_id"], body["request_id"], body["abort_token"]


@dataclass
class _Script:
    steps: Sequence[Any]
    aborted: threading.Event = field(default_factory=threading.Event)


class ScriptedServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers turn n with script n; `default` when the scripts are used up."""

    def __init__(self) -> None:
        self.turns: list[Seen] = []
        self.controls: list[Seen] = []
        self.scripts: list[list[Any]] = []
        self.default: list[Any] = ["ok"]
        self.abort_misses = 0
        self.control_failure = ""
        self._open: dict[str, _Script] = {}
        self._go = threading.Event()
        self.reached = threading.Event()
        self.controlled = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def go(self) -> None:
        self._go.set()

    def stop(self) -> None:
        self._go.set()
        for script in self._open.values():
            script.aborted.set()
        self._server.stop(None).wait()

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for request in request_iterator:
            seen = _seen(request)
            self.turns.append(seen)
            script = _Script(self.scripts.pop(0) if self.scripts else self.default)
            self._open[seen.id] = script
            yield from self._answer(seen, script)

    def _answer(self, seen: Seen, script: _Script) -> Iterator[Any]:
        for position, step in enumerate(script.steps):
            if step is WAIT:
                self.reached.set()
                assert script.aborted.wait(LIMIT_S), "nobody aborted"
                yield _failure(f"aborted |mblt {json.dumps({'code': 'CANCELLED', 'request_id': seen.id})}|")
                return
            if step is PART:
                self.reached.set()
                self._go.wait(LIMIT_S)
            elif isinstance(step, Fail):
                yield _failure(step.text)
                return
            else:
                yield _response(seen, step, final=position == len(script.steps) - 1)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        seen = _seen(request)
        self.controls.append(seen)
        self.controlled.set()
        if self.control_failure:
            context.abort(grpc.StatusCode.UNAVAILABLE, self.control_failure)
        return control_reply(self, seen)

    def abort(self, request_id: str) -> bool:
        """As lm_control does it; False the first `abort_misses` times, as when the LM does not know the request yet."""
        if self.abort_misses:
            self.abort_misses -= 1
            return False
        self._open[request_id].aborted.set()
        return True


def _seen(request: Any) -> Seen:
    tensors: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        tensors[tensor.name] = bool(raw[0]) if tensor.datatype == "BOOL" else raw[4:].decode("utf-8")
        assert list(tensor.shape) == [1]
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
    }
    return Seen(request.model_name, request.id, tensors, parameters)


def _response(seen: Seen, text: str, *, final: bool) -> Any:
    response = service_pb2.ModelInferResponse(model_name=seen.model, id=seen.id)
    response.parameters["triton_final_response"].bool_param = final
    add_text(response, "text_output", text)
    add_text(response, "finish_reason", "stop" if final else "None")
    add_count(response, "num_input_tokens", 7)
    add_count(response, "num_output_tokens", 1)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def _failure(text: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=text)


def add_text(response: Any, name: str, text: str) -> None:
    data = text.encode()
    response.outputs.add(name=name, datatype="BYTES", shape=[1])
    response.raw_output_contents.append(struct.pack("<I", len(data)) + data)


def add_count(response: Any, name: str, count: int) -> None:
    response.outputs.add(name=name, datatype="UINT32", shape=[1])
    response.raw_output_contents.append(struct.pack("<I", count))


def control_reply(server: ScriptedServer, seen: Seen) -> Any:
    body = json.loads(seen.tensors["request"])
    if body["verb"] == "abort":
        reply = {"aborted": server.abort(body["request_id"])}
    else:
        reply = {"renewed": True}
    response = service_pb2.ModelInferResponse(model_name=seen.model, id=seen.id)
    add_text(response, "response", json.dumps(reply))
    return response
