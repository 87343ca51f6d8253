"""The verbs of `lm_control` for tests, over HTTP infer, and the emulator's counters."""

from __future__ import annotations

import json
from typing import Any

from triton_calls import eventually
from triton_server import TritonServer


class Refused(Exception):
    """lm_control answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Control:
    def __init__(self, server: TritonServer) -> None:
        self._server = server

    def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        return self.send(json.dumps({"verb": verb, **fields}))

    def send(self, text: str) -> dict[str, Any]:
        body = {"inputs": [{"name": "request", "shape": [1], "datatype": "BYTES", "data": [text]}]}
        status, answer = self._server.post("/v2/models/lm_control/infer", body)
        parsed = json.loads(answer)
        if status != 200:
            raise Refused(status, parsed["error"])
        return dict(json.loads(parsed["outputs"][0]["data"][0]))

    def stats(self) -> dict[str, Any]:
        return self.call("stats")

    def worker_pid(self) -> int:
        return int(self.stats()["workers"][0]["pid"])

    def calls(self) -> list[dict[str, Any]]:
        """The emulator's latest device calls, oldest first."""
        (process,) = json.loads(self._server.cli("emulate", "stats", "--pid", str(self.worker_pid())))
        return list(process["recent"])

    def slow_down(self, seconds: float, calls: int) -> None:
        """Make each of the next device calls longer."""
        fault = {"kind": "hang", "seconds": seconds, "times": calls}
        self._server.cli("emulate", "fault", "--pid", str(self.worker_pid()), json.dumps(fault))

    def wait_idle(self) -> None:
        eventually(lambda: self.stats()["open_requests"] == 0)
