"""The error types of the product, and the machine-readable tail that carries them over Triton's text-only wire.

A streamed Triton error reaches a client as text alone, prefixed by the ensemble and without code or request id, so
every message of ours ends with a fixed tail that one parser (`parse_error`) reads. Mapping to Triton codes is the
`code` itself; mapping to HTTP belongs to the frontend.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import msgspec

Code = Literal["INVALID_ARG", "UNSUPPORTED", "UNAVAILABLE", "CANCELLED", "INTERNAL", "NOT_FOUND", "PERMISSION_DENIED"]


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a value: what crosses pipes and wires. `param` names the request field at fault, "" when none."""

    code: Code
    message: str
    param: str = ""
    request_id: str = ""


class MbltError(Exception):
    """Base of all errors of this product. `code` is the Triton status, one per type."""

    code: ClassVar[Code] = "INTERNAL"

    def __init__(self, message: str, *, param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def info(self, request_id: str = "") -> ErrorInfo:
        return ErrorInfo(code=self.code, message=self.message, param=self.param, request_id=request_id)


class InvalidRequest(MbltError):
    """The caller's request is wrong; `param` names the field."""

    code = "INVALID_ARG"


class Unsupported(MbltError):
    """The request is meaningful but this deployment cannot do it."""

    code = "UNSUPPORTED"


class NotFound(MbltError):
    """A named thing (a request to abort, a model) does not exist."""

    code = "NOT_FOUND"


class PermissionDenied(MbltError):
    """A control request without the key it needs."""

    code = "PERMISSION_DENIED"


class Overloaded(MbltError):
    """A bounded queue is full; try again later."""

    code = "UNAVAILABLE"


class WorkerRestarting(MbltError):
    """The NPU worker of this request died or is not up yet; try again."""

    code = "UNAVAILABLE"


class ModelUnavailable(MbltError):
    """The model could not be loaded and a retry would fail alike: an operator has to look."""

    code = "UNAVAILABLE"


class Cancelled(MbltError):
    """The request was aborted, replaced by a new START, or its lease ran out."""

    code = "CANCELLED"


class NpuFault(MbltError):
    """A device call failed; only the rows of that call are lost."""

    code = "INTERNAL"


class ConfigError(MbltError):
    """A deployment cannot be loaded as configured; `param` names the setting."""

    code = "INVALID_ARG"


_TYPE_OF_CODE: dict[Code, type[MbltError]] = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": Unsupported,
    "UNAVAILABLE": WorkerRestarting,
    "CANCELLED": Cancelled,
    "INTERNAL": NpuFault,
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": PermissionDenied,
}


def error_of(info: ErrorInfo) -> MbltError:
    """An exception with the code, message and param of an error that came through a pipe."""
    return _TYPE_OF_CODE[info.code](info.message, param=info.param)


_TAIL = re.compile(r" \|mblt (\{.*\})\|")


class _Tail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: Code
    param: str = ""
    request_id: str = ""


_TAIL_DECODER = msgspec.json.Decoder(_Tail)


def format_error(info: ErrorInfo) -> str:
    """Text for a Triton error: the message, then ` |mblt {"code":...,"param":...,"request_id":...}|`."""
    tail = msgspec.json.encode(_Tail(info.code, info.param, info.request_id)).decode()
    return f"{info.message} |mblt {tail}|"


def parse_error(text: str) -> ErrorInfo | None:
    """The ErrorInfo inside a Triton error text (an ensemble's prefix is dropped), or None when the text is not ours."""
    found = _TAIL.search(text)
    if found is None:
        return None
    try:
        tail = _TAIL_DECODER.decode(found.group(1))
    except msgspec.MsgspecError:
        return None
    message = re.sub(r"^in ensemble '[^']*', ", "", text[: found.start()])
    return ErrorInfo(code=tail.code, message=message, param=tail.param, request_id=tail.request_id)
