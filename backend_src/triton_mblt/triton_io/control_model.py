"""Triton model `lm_control`: one JSON request, one JSON response, relayed to the LM of the same server.

A plain model, not decoupled, so that unary gRPC and HTTP infer reach it; never behind the LM's sequence batcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from triton_mblt.core.errors import InvalidRequest, MbltError, Unsupported
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.deployment import read_deployment
from triton_mblt.worker.control import call

_LATER = ("profile",)


class ControlModel:
    """Verbs: abort, renew, stats, drain (docs/protocol.md)."""

    def initialize(self, args: Mapping[str, str]) -> None:
        try:
            self._lm = read_deployment(args).lm
        except MbltError as error:
            raise wire.load_error(error.info()) from error

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            answer = msgspec.json.encode(call(self._lm, _parsed(wire.text_input(request, "request"))))
            return wire.response([wire.bytes_tensor("response", answer)])
        except MbltError as error:
            return wire.error_response(error.info(wire.request_id(request)))


def _parsed(text: str | None) -> dict[str, Any]:
    if text is None:
        raise InvalidRequest("request is missing", param="request")
    try:
        value = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"request is not a JSON object: {error}", param="request") from error
    if value.get("verb") in _LATER:
        raise Unsupported(f"the verb {value['verb']} is not supported yet", param="verb")
    return value
