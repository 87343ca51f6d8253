"""Errors as a client sees them. Owns the reading of the machine tail ` |mblt {...}|`; knows no model and no terminal.

A streamed Triton error carries text only, so the server ends its messages with a tail: code, param, request id.
"""

from __future__ import annotations

import json
import re

from tritonclient.utils import InferenceServerException

_TAIL = re.compile(r" \|mblt (\{.*\})\|")
_ENSEMBLE = re.compile(r"^in ensemble '[^']*', ")


class ServerError(Exception):
    """A request failed. `code` is Triton's status name ("" when unknown); `ours` is False when Triton or gRPC spoke."""

    def __init__(
        self, message: str, *, code: str = "", param: str = "", request_id: str = "", ours: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.request_id = request_id
        self.ours = ours

    def line(self) -> str:
        """One line for a person: code, field at fault, message."""
        where = f" ({self.param})" if self.param else ""
        text = " ".join(self.message.split())
        return f"{self.code or 'error'}{where}: {text}"


def error_of(error: InferenceServerException) -> ServerError:
    """What a tritonclient exception says, with the tail's fields when it has one."""
    text = str(error.message() or "")
    tail = _read_tail(text)
    if tail is None:
        status = str(error.status() or "").rpartition(".")[2]
        return ServerError(_ENSEMBLE.sub("", text), code=status)
    position, fields = tail
    return ServerError(
        _ENSEMBLE.sub("", text[:position]),
        code=str(fields.get("code", "")),
        param=str(fields.get("param", "")),
        request_id=str(fields.get("request_id", "")),
        ours=True,
    )


def _read_tail(text: str) -> tuple[int, dict[str, object]] | None:
    found = _TAIL.search(text)
    if found is None:
        return None
    try:
        fields = json.loads(found.group(1))
    except ValueError:
        return None
    return (found.start(), fields) if isinstance(fields, dict) else None
