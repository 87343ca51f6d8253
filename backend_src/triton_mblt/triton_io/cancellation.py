"""Finds out that a client has left: Triton tells nobody, so one thread asks for every open request.

Owns the list of requests to ask for. Knows nothing of what a cancellation means; it calls back.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from triton_mblt.triton_io import wire
from triton_mblt.triton_io.sender import Responder

# Each question is a message to the server and back (about 50 us): the rest of the stub keeps most of the time.
_LARGEST_SHARE = 0.2


class CancellationPoller:
    """Asks every `interval_s`, less often when there are so many requests that asking would fill the time."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._watched: dict[Responder, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mblt-cancellation", daemon=True)
        self._thread.start()

    def watch(self, responder: Responder, on_cancelled: Callable[[], None]) -> None:
        """Call `on_cancelled` on the poller's thread, in every round from the cancellation to the final response."""
        with self._lock:
            self._watched[responder] = on_cancelled

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._interval_s
        while not self._stop.wait(pause):
            began = time.monotonic()
            with self._lock:
                for responder in [one for one in self._watched if one.closed]:
                    del self._watched[responder]
                watched = list(self._watched.items())
            for responder, on_cancelled in watched:
                _ask(responder, on_cancelled)
            pause = max(self._interval_s, (time.monotonic() - began) / _LARGEST_SHARE)


def _ask(responder: Responder, on_cancelled: Callable[[], None]) -> None:
    try:
        if responder.cancelled():
            on_cancelled()
    except Exception:  # noqa: BLE001 -- one request's trouble must not end the watch over the others
        wire.log("error", f"watching request {responder.request_id!r} failed:\n{traceback.format_exc()}")
