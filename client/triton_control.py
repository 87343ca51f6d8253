"""Speaks to the model `lm_control`: abort a request, keep its lease alive."""

from __future__ import annotations

import contextlib
import json
import threading
from types import TracebackType
from typing import Any

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from triton_errors import ServerError, error_of
from triton_stream import TurnRequest, tensor

CONTROL_LIMIT_S = 5.0


class Control:
    """Calls of `lm_control`. Thread-safe, as its client is."""

    def __init__(self, client: grpcclient.InferenceServerClient, model: str = "lm_control") -> None:
        self._client = client
        self._model = model

    def abort(self, request: TurnRequest) -> bool:
        """Cancel an answer; False when the LM does not know it (not there yet, or over). Errors: ServerError."""
        return bool(self._call("abort", request).get("aborted", False))

    def renew(self, request: TurnRequest) -> bool:
        """Promise that somebody still listens; False when the server does not know the request. Errors: ServerError."""
        return bool(self._call("renew", request).get("renewed", False))

    def _call(self, verb: str, request: TurnRequest) -> dict[str, Any]:
        body = {
            "verb": verb,
            "sequence_id": request.sequence_id,
            "request_id": request.request_id,
            "abort_token": request.abort_token,
        }
        try:
            result = self._client.infer(
                self._model, [tensor("request", json.dumps(body))], client_timeout=CONTROL_LIMIT_S
            )
        except InferenceServerException as error:
            raise error_of(error) from error
        reply = json.loads(result.as_numpy("response").reshape(-1)[0])
        return reply if isinstance(reply, dict) else {}


class Lease:
    """Renews the lease of one request from a thread while the `with` block runs. Without a lease it does nothing."""

    def __init__(self, control: Control, request: TurnRequest) -> None:
        self._control = control
        self._request = request
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        if self._request.lease_s:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _renew(self) -> None:
        while not self._over.wait(self._request.lease_s / 3):
            # A server that is gone shows in the stream itself; the next renewal may get through.
            with contextlib.suppress(ServerError):
                self._control.renew(self._request)
