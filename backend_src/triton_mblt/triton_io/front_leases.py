"""Keeps the leases of the front's own requests alive, so that they end soon when the front's process dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from triton_mblt.core.errors import MbltError

LEASE_S = 30.0

ControlRequest = dict[str, Any]


class FrontLeases:
    """Renews what is held, three times per lease. `control` sends a control request to the LM."""

    def __init__(self, control: Callable[[ControlRequest], object], lease_s: float = LEASE_S) -> None:
        self._control = control
        self._lease_s = lease_s
        self._held: dict[int, ControlRequest] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mblt-front-leases", daemon=True)
        self._thread.start()

    def hold(self, number: int, renewal: ControlRequest) -> None:
        with self._lock:
            self._held[number] = renewal

    def drop(self, number: int) -> None:
        """Unknown numbers are ignored."""
        with self._lock:
            self._held.pop(number, None)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._lease_s / 3):
            with self._lock:
                renewals = list(self._held.values())
            for renewal in renewals:
                with suppress(MbltError):  # the next round may get through; or the LM is gone, and its requests too
                    self._control(renewal)
