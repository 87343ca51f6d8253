"""Stands in for the module that exists inside a Triton stub only. Does what Triton's documentation says of these names.

A sender that is used after its final response raises: the real one takes the server down with it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    def __init__(self, name: str, values: Any) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._values


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Logger:
    lines: ClassVar[list[str]] = []

    log_verbose = log_info = log_warn = log_error = lines.append


class Sender:
    """Records. `busy` is held by a test to keep a send from returning."""

    def __init__(self) -> None:
        self.sent: list[tuple[InferenceResponse | None, int]] = []
        self.client_left = False
        self.over = False
        self.busy = threading.Event()
        self.busy.set()
        self.entered = threading.Event()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.over:
            raise AssertionError("sent after the final response")
        self.entered.set()
        self.busy.wait(10)
        self.over = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        if self.over:
            raise AssertionError("asked after the final response")
        return self.client_left

    @property
    def finals(self) -> int:
        return sum(flags for _, flags in self.sent)

    def texts(self) -> list[str]:
        return [named(response)["text_output"].decode() for response, _ in self.sent if response is not None]


class Request:
    """Inputs by name: a str or bytes is a STRING tensor of one element, a bool a BOOL one, a list an INT32 vector."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        *,
        request_id: str = "r1",
        correlation_id: int | str = 7,
        flags: int = 3,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._inputs = {name: Tensor(name, _array(value)) for name, value in inputs.items()}
        self._request_id, self._correlation_id, self._flags = request_id, correlation_id, flags
        self._parameters = json.dumps(dict(parameters)) if parameters else ""
        self.sender = Sender()

    def inputs(self) -> list[Tensor]:
        return list(self._inputs.values())

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def parameters(self) -> str:
        return self._parameters

    def get_response_sender(self) -> Sender:
        return self.sender


class InferenceRequest:
    """A call of another model: noted in `made`, answered with `answers`."""

    made: ClassVar[list[dict[str, Any]]] = []
    answers: ClassVar[list[InferenceResponse]] = []

    def __init__(self, **what: Any) -> None:
        self.made.append(what)

    def exec(self, decoupled: bool = False) -> Iterator[InferenceResponse]:
        assert decoupled
        return iter(self.answers)


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def named(response: InferenceResponse) -> dict[str, Any]:
    """For tests: a response's first elements by name, token_ids in full."""
    return {
        tensor.name(): tensor.as_numpy().tolist() if tensor.name() == "token_ids" else tensor.as_numpy()[0]
        for tensor in response.output_tensors()
    }


def _array(value: Any) -> Any:
    if isinstance(value, (str, bytes)):
        return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)
    if isinstance(value, bool):
        return np.array([value])
    return np.array(value, dtype=np.int32) if isinstance(value, list) else value
