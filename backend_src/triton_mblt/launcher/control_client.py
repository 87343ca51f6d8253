"""Asks a running server: is it ready, how is its LM, drain. Over HTTP, as any administrator would.

Knows the tensors of `lm_control` (docs/protocol.md), nothing of what is behind it. Every call bounds its time.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.launcher.rundir import RunDir

_CONTROL = "/v2/models/lm_control"
# What is open ends with an error after this part of a drain's limit; that error needs the rest to reach its client.
_DRAIN_SHARE = 0.75
_ON_ITS_WAY_S = 0.1


class Unreachable(Exception):
    """No answer, or one that is no answer of `lm_control`."""


class ControlClient:
    """One server's HTTP port. Every call uses a connection of its own."""

    def __init__(self, settings: ServerSettings, run: RunDir) -> None:
        self._host, self._port = settings.local_address, settings.http_port
        self._admin_key, self._server_id = run.admin_key, run.server_id

    def is_ready(self) -> bool:
        """Whether our server says that all its models are ready.

        Triton opens its ports after loading the models: until then another server may have taken them, and answer.
        """
        try:
            status, text = self._call("GET", "/v2", "", 2.0)
            if status != 200 or json.loads(text)["name"] != self._server_id:
                return False
            return self._call("GET", "/v2/health/ready", "", 2.0)[0] == 200
        except (Unreachable, ValueError, LookupError, TypeError):
            return False

    def has_control(self) -> bool:
        """Whether this server's repository has `lm_control` (one of a user's own may not)."""
        try:
            return self._call("GET", _CONTROL + "/ready", "", 2.0)[0] == 200
        except Unreachable:
            return False

    def ask(self, verb: str, limit_s: float, /, **fields: float | str) -> Mapping[str, Any]:
        """One verb of `lm_control` with its fields. Errors: Unreachable, also for a refusal."""
        request = json.dumps({"verb": verb, **fields})
        tensor = {"name": "request", "datatype": "BYTES", "shape": [1], "data": [request]}
        status, text = self._call("POST", _CONTROL + "/infer", json.dumps({"inputs": [tensor]}), limit_s)
        if status != 200:
            raise Unreachable(f"lm_control answers {verb} with {status}: {text[:300]}")
        try:
            answer = json.loads(json.loads(text)["outputs"][0]["data"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise Unreachable(f"lm_control answers {verb} with {text[:300]}") from error
        if not isinstance(answer, dict):
            raise Unreachable(f"lm_control answers {verb} with {text[:300]}")
        return answer

    def drain(self, limit_s: float, hurry: Callable[[], bool]) -> bool:
        """Let the LM take no new requests, wait for its open ones, and have those that last end with an error shortly
        before `limit_s`. True when all have ended."""
        deadline = time.monotonic() + limit_s
        try:
            self.ask("drain", limit_s, limit_s=_DRAIN_SHARE * limit_s, admin_key=self._admin_key)
            while not hurry() and (left := deadline - time.monotonic()) > 0:
                if self.ask("stats", max(0.1, left))["open_requests"] == 0:
                    time.sleep(_ON_ITS_WAY_S)  # their last responses
                    return True
                time.sleep(0.05)
        except (Unreachable, KeyError):
            return False  # a server that cannot be asked is stopped all the same
        return False

    def _call(self, method: str, path: str, body: str, limit_s: float) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=limit_s)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no answer from {self._host}:{self._port}: {error}") from error
        finally:
            connection.close()


class LmProbe:
    """Asks for stats in a thread of its own, so that a server that hangs does not keep the launcher from Ctrl-C.

    There is trouble once `failures` questions in a row had no answer; a busy machine may miss one.
    """

    def __init__(
        self, client: ControlClient, *, every_s: float = 5.0, limit_s: float = 10.0, failures: int = 3
    ) -> None:
        self._client, self._every, self._limit, self._least = client, every_s, limit_s, failures
        self._failed = 0
        self._last = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lm-probe", daemon=True)
        self._thread.start()

    def trouble(self) -> str | None:
        return f"the LM does not answer ({self._last})" if self._failed >= self._least else None

    def server_is_ready(self) -> None:
        self._failed = 0

    def close(self) -> None:
        """Ask no more. Does not wait for a question that is under way."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self._every):
            try:
                self._client.ask("stats", self._limit)
                self._failed = 0
            except Unreachable as error:
                self._last = str(error)
                self._failed += 1
