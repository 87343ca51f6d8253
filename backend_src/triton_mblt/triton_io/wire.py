"""Triton's python backend in plain Python terms: the only importer of its module.

Owns how tensors, parameters and errors are read and written. Knows no request of ours. Triton runs model files once
more in a stripped interpreter to complete their configuration; there the module lacks most names, so they are looked up
when used, never on import.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb

from triton_mblt.core.errors import Code, ErrorInfo, InvalidRequest, format_error
from triton_mblt.core.sampling_params import Scalar

START, END = 1, 2

# Codes of ours that some or all servers do not know, and what they are sent as.
_NEAREST: Mapping[str, str] = {"PERMISSION_DENIED": "INVALID_ARG", "CANCELLED": "UNAVAILABLE"}
_OURS: tuple[Code, ...] = ("INVALID_ARG", "UNSUPPORTED", "UNAVAILABLE", "CANCELLED", "NOT_FOUND")


class Identity(msgspec.Struct, frozen=True):
    """Who a request is. `correlation_id` is 0 or "" outside a sequence."""

    request_id: str
    correlation_id: int | str
    start: bool
    end: bool


# ---- reading a request ----


def identity(request: Any) -> Identity:
    flags = request.flags()
    return Identity(request_id(request), request.correlation_id(), bool(flags & START), bool(flags & END))


def request_id(request: Any) -> str:
    """The caller's id; what is not UTF-8 in it (the HTTP door lets such through) is shown as U+FFFD."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def bytes_input(request: Any, name: str) -> bytes | None:
    """The one element of a STRING input, None when it was left out. Errors: InvalidRequest(name)."""
    values = _values(request, name)
    if values is None:
        return None
    _expect(values.size == 1, name, f"must have 1 element, has {values.size}")
    value = values.reshape(-1)[0]
    _expect(isinstance(value, bytes), name, "must be a string")
    return bytes(value)


def text_input(request: Any, name: str) -> str | None:
    """As `bytes_input`, decoded. Errors: InvalidRequest(name), also for bytes that are not UTF-8."""
    value = bytes_input(request, name)
    return None if value is None else decoded(value, name)


def decoded(value: bytes, name: str) -> str:
    """Text of UTF-8 bytes; strict, so encoded surrogates are refused. Errors: InvalidRequest(name)."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8: {error.reason} at byte {error.start}", param=name) from error


def flag_input(request: Any, name: str) -> bool | None:
    """The one element of a BOOL input, None when it was left out. Errors: InvalidRequest(name)."""
    values = _values(request, name)
    if values is None:
        return None
    _expect(values.size == 1, name, f"must have 1 element, has {values.size}")
    _expect(values.dtype == np.bool_, name, f"must be a boolean, is {values.dtype}")
    return bool(values.reshape(-1)[0])


def ids_input(request: Any, name: str) -> bytes | None:
    """A vector of int32 as little-endian bytes, None when it was left out. Errors: InvalidRequest(name)."""
    values = _values(request, name)
    if values is None:
        return None
    _expect(values.dtype == np.int32 and values.ndim == 1, name, "must be a vector of INT32")
    return values.astype("<i4", copy=False).tobytes()


def has_input(request: Any, name: str) -> bool:
    return pb.get_input_tensor_by_name(request, name) is not None


def parameters(request: Any) -> dict[str, Scalar]:
    """The request's parameters: strings, numbers and booleans by name. Errors: InvalidRequest naming one that is not
    UTF-8 (the generate endpoint lets such through)."""
    try:
        text = request.parameters()
    except UnicodeDecodeError as error:
        raise _not_utf8(json.loads(error.object.decode("utf-8", "surrogateescape"))) from error
    return dict(json.loads(text)) if text else {}


def _not_utf8(given: dict[str, Scalar]) -> InvalidRequest:
    for name, value in given.items():
        shown = name[:60].encode("ascii", "backslashreplace").decode()
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError:
            return InvalidRequest(f"the parameter {shown} is not UTF-8", param=shown)
    return InvalidRequest("the parameters are not UTF-8", param="parameters")


def copied_inputs(request: Any) -> dict[str, npt.NDArray[Any]]:
    """The values of a request's inputs by name; they outlive it."""
    return {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}


def _values(request: Any, name: str) -> npt.NDArray[Any] | None:
    tensor = pb.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    values: npt.NDArray[Any] = tensor.as_numpy()
    return values


def _expect(condition: bool, name: str, rule: str) -> None:
    if not condition:
        raise InvalidRequest(f"{name} {rule}", param=name)


# ---- writing responses ----


def text_tensor(name: str, text: str) -> Any:
    return pb.Tensor(name, np.array([text.encode("utf-8", "replace")], dtype=np.object_))


def bytes_tensor(name: str, value: bytes) -> Any:
    return pb.Tensor(name, np.array([value], dtype=np.object_))


def flag_tensor(name: str, value: bool) -> Any:
    return pb.Tensor(name, np.array([value]))


def float_tensor(name: str, value: float) -> Any:
    return pb.Tensor(name, np.array([value], dtype=np.float32))


def count_tensor(name: str, value: int) -> Any:
    return pb.Tensor(name, np.array([value], dtype=np.uint32))


def ids_tensor(name: str, ids: Sequence[int]) -> Any:
    """A vector of int32."""
    return pb.Tensor(name, np.array(ids, dtype=np.int32))


def response(tensors: Sequence[Any]) -> Any:
    return pb.InferenceResponse(list(tensors))


def error_response(info: ErrorInfo) -> Any:
    """A response that carries `info`: its code, its message and the machine-readable tail."""
    name: str = info.code
    while not hasattr(pb.TritonError, name):
        name = _NEAREST[name]
    return pb.InferenceResponse(error=pb.TritonError(format_error(info), getattr(pb.TritonError, name)))


def send(sender: Any, answer: Any, final: bool) -> None:
    """One response on a response sender."""
    sender.send(answer, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)


def send_end(sender: Any) -> None:
    """The final flag alone."""
    sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


# ---- calling another model ----


def call_model(
    model: str,
    inputs: Sequence[Any],
    outputs: Sequence[str],
    who: Identity,
    request_parameters: Mapping[str, Scalar],
) -> Iterator[Any]:
    """The responses of a decoupled model; blocks the calling thread. Floats travel as strings (Triton takes none).

    Errors: InvalidRequest when Triton does not take the request.
    """
    try:
        request = pb.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=list(inputs),
            request_id=who.request_id,
            correlation_id=who.correlation_id,
            flags=START * who.start + END * who.end,
            parameters={name: _sendable(value) for name, value in request_parameters.items()},
        )
        yield from request.exec(decoupled=True)
    except pb.TritonModelException as error:
        raise InvalidRequest(str(error)) from error


def output_values(answer: Any) -> dict[str, npt.NDArray[Any]]:
    """The outputs of a model's response by name; they outlive it."""
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}


def tensors_of(values: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
    return [pb.Tensor(name, value) for name, value in values.items()]


def response_error(answer: Any) -> tuple[str, Code] | None:
    """Text and code of a response's error, None when it has none."""
    if not answer.has_error():
        return None
    error = answer.error()
    code: Code = "INTERNAL"
    for ours in _OURS:
        if hasattr(pb.TritonError, ours) and error.code() == getattr(pb.TritonError, ours):
            code = ours
    return error.message(), code


def _sendable(value: Scalar) -> str | int | bool:
    return repr(value) if isinstance(value, float) else value


# ---- the model itself ----


def log(level: str, text: str) -> None:
    """Write to the server's log. Levels: debug, info, warning, error."""
    logger = pb.Logger
    {"debug": logger.log_verbose, "info": logger.log_info, "warning": logger.log_warn, "error": logger.log_error}[
        level
    ](text)


def load_error(info: ErrorInfo) -> Exception:
    """What `initialize` raises so that the server says why the model cannot be loaded."""
    error: Exception = pb.TritonModelException(format_error(info))
    return error


def metric_family(name: str, description: str, kind: str) -> Any | None:
    """A family of server metrics, None when this server has none. `kind` is "counter" or "gauge"."""
    if not hasattr(pb, "MetricFamily"):
        return None
    kinds = {"counter": pb.MetricFamily.COUNTER, "gauge": pb.MetricFamily.GAUGE}
    try:
        return pb.MetricFamily(name=name, description=description, kind=kinds[kind])
    except pb.TritonModelException:  # the server was started without metrics
        return None
