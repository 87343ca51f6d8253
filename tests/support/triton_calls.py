"""Talks to a Triton server in its own protobuf messages, so that tests see what tritonclient hides: the final flag and
the request id of an error."""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_mblt.core.errors import ErrorInfo, parse_error

LIMIT_S = 60.0
_NUMBERS = itertools.count(1)
_TYPES = {"text": "BYTES", "flag": "BOOL", "ids": "INT32"}


@dataclass
class Reply:
    """What came back for one request. `finals` counts final flags; `responses` are outputs by name, in order."""

    request_id: str
    responses: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    finals: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def text(self) -> str:
        return "".join(str(one["text_output"]) for one in self.responses if "text_output" in one)

    @property
    def tokens(self) -> int:
        return sum(int(one.get("num_output_tokens", 0)) for one in self.responses)

    @property
    def info(self) -> ErrorInfo:
        """The error's machine-readable part; fails the test when there is none."""
        info = parse_error(self.error)
        assert info is not None, f"no error of ours: {self.error!r}; got {self.responses}"
        return info

    def wait(self, limit_s: float = LIMIT_S) -> Reply:
        """Wait for the end: the final flag, or an error of Triton's own door, which has none."""
        return self._until(lambda: self.finals > 0 or self.error != "", limit_s)

    def wait_responses(self, count: int, limit_s: float = LIMIT_S) -> Reply:
        return self._until(lambda: len(self.responses) >= count or self.finals > 0, limit_s)

    def _until(self, condition: Any, limit_s: float) -> Reply:
        with self.changed:
            assert self.changed.wait_for(condition, limit_s), f"{self.request_id}: no end in {limit_s} s: {self}"
            return self

    def take(self, message: Any) -> None:
        with self.changed:
            answer = message.infer_response
            if message.error_message:
                self.error = message.error_message
            elif answer.outputs:
                self.responses.append(_outputs(answer))
            self.finals += answer.parameters["triton_final_response"].bool_param
            self.changed.notify_all()


class Stream:
    """One gRPC stream with any number of requests on it."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(address, options)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replies: dict[str, Reply] = {}
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._call = stub.ModelStreamInfer(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, model: str, **what: Any) -> Reply:
        """See `make_request` for the keywords."""
        request = make_request(model, **what)
        reply = self._replies[request.id] = Reply(request.id)
        self._requests.put(request)
        return reply

    def ask(self, model: str, **what: Any) -> Reply:
        return self.send(model, **what).wait()

    def cancel(self) -> None:
        self._call.cancel()
        self._reader.join(LIMIT_S)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._reader.join(LIMIT_S)
        self._channel.close()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._replies[message.infer_response.id].take(message)
        except grpc.RpcError:
            return


def make_request(
    model: str,
    *,
    text: str | bytes | None = None,
    messages: Any = None,
    ids: list[int] | None = None,
    sampling: dict[str, Any] | str | None = None,
    sequence: int | str = 0,
    start: bool = True,
    end: bool = True,
    request_id: str = "",
    parameters: dict[str, Any] | None = None,
    **flags: Any,
) -> Any:
    """A request. `messages` and `sampling` are sent as JSON unless they are strings; `flags` are BOOL inputs, or STRING
    when the value is a str or bytes."""
    inputs: dict[str, tuple[str, Any]] = {}
    for name, value in (("text_input", text), ("messages", messages), ("sampling_parameters", sampling)):
        if value is not None:
            inputs[name] = ("text", value if isinstance(value, (str, bytes)) else json.dumps(value))
    if ids is not None:
        inputs["input_ids"] = ("ids", ids)
    for name, value in flags.items():
        inputs[name] = ("flag" if isinstance(value, bool) else "text", value)
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id or f"r{next(_NUMBERS)}")
    for name, (kind, value) in inputs.items():
        _add(request, name, kind, value)
    extra: dict[str, Any] = dict(parameters or {})
    if sequence:
        extra |= {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    for name, value in {**extra, "triton_enable_empty_final_response": True}.items():
        _set(request.parameters[name], value)
    return request


def http_events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a generate_stream body."""
    for line in lines:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def eventually(condition: Any, limit_s: float = 20.0) -> None:
    """Wait until `condition()` is true; it is a failure when it stays false."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not come true"
        time.sleep(0.02)


def _add(request: Any, name: str, kind: str, value: Any) -> None:
    tensor = request.inputs.add(name=name, datatype=_TYPES[kind], shape=[len(value) if kind == "ids" else 1])
    if kind == "text":
        data = value.encode() if isinstance(value, str) else value
        tensor.contents.bytes_contents.append(data)
    elif kind == "flag":
        tensor.contents.bool_contents.append(value)
    else:
        tensor.contents.int_contents.extend(value)


def _set(parameter: Any, value: Any) -> None:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    setattr(parameter, kinds[type(value)], value)


def _outputs(answer: Any) -> dict[str, Any]:
    """Outputs by name: a str, int or float for one element, a list for token_ids."""
    found: dict[str, Any] = {}
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        if output.datatype == "BYTES":
            found[output.name] = raw[4:].decode()
        else:
            values = np.frombuffer(raw, {"FP32": np.float32, "UINT32": np.uint32, "INT32": np.int32}[output.datatype])
            found[output.name] = values.tolist() if output.name in ("token_ids", "input_ids") else values.tolist()[0]
    return found
