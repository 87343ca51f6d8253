"""Leases of open requests: one thread that names the handles whose time ran out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class LeaseClock:
    """Deadlines by handle. `on_expiry` is called on the clock's thread, once per deadline, without its lock."""

    def __init__(self, on_expiry: Callable[[int], None]) -> None:
        self._on_expiry = on_expiry
        self._deadlines: dict[int, float] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mblt-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set(self, handle: int, lease_s: float) -> None:
        """Expire `handle` in `lease_s` seconds unless set again or dropped before."""
        with self._changed:
            self._deadlines[handle] = time.monotonic() + lease_s
            self._changed.notify()

    def drop(self, handle: int) -> None:
        """Forget `handle`; unknown ones are ignored."""
        with self._changed:
            self._deadlines.pop(handle, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                expired = [handle for handle, deadline in self._deadlines.items() if deadline <= now]
                for handle in expired:
                    del self._deadlines[handle]
                if not expired:
                    earliest = min(self._deadlines.values(), default=None)
                    self._changed.wait(None if earliest is None else earliest - now)
            for handle in expired:
                self._on_expiry(handle)
