"""The verbs of `lm_control` for tests, over HTTP infer, and a look at the emulated NPU behind it."""

from __future__ import annotations

import json
from typing import Any

from triton_calls import eventually
from triton_server import TritonServer

from triton_mblt.emulator import faults
from triton_mblt.emulator.stats import CallStats, read_stats


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

    def slots_are_free(self) -> bool:
        engine = self.stats()["workers"][0]["engine"]
        return engine is not None and bool(engine["slots"]["free"] == engine["slots"]["total"])

    def calls_since(self, start_ns: int) -> list[CallStats]:
        """The emulator's device calls that began after a moment of the monotonic clock, oldest first."""
        (process,) = read_stats(self.worker_pid(), run_dir=self._server.folder / "emulator")
        return [call for call in process["latest"] if call["start_ns"] > start_ns]

    def slow_down(self, seconds: float) -> None:
        """Make every device call longer, from the next one on."""
        fault = {"kind": "hang", "seconds": seconds, "times": None}
        faults.inject(self.worker_pid(), fault, run_dir=self._server.folder / "emulator")

    def back_to_speed(self) -> None:
        faults.clear(self.worker_pid(), run_dir=self._server.folder / "emulator")

    def wait_idle(self) -> None:
        """Wait until no request is open and no slot taken."""
        eventually(lambda: self.stats()["open_requests"] == 0 and self.slots_are_free())
