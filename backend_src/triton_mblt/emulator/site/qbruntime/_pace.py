"""Waiting until a moment, closely, without holding the interpreter."""

from __future__ import annotations

import ctypes
import threading
import time

_COARSE_MARGIN_NS = 150_000  # of the way is left to short naps, since a long sleep ends less exactly
_NAP_S = 20e-6
_PR_SET_TIMERSLACK = 29  # how late the kernel may wake a thread to save power: 50 us by default
_SLACK_NS = 1_000

_thread = threading.local()
_libc = ctypes.CDLL(None)


def wait_until(deadline_ns: int) -> None:
    """Return at `deadline_ns` of the monotonic clock or as shortly after as the system allows."""
    left = deadline_ns - time.monotonic_ns()
    if left <= 0:
        return
    if not hasattr(_thread, "exact"):
        _thread.exact = _libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_SLACK_NS)) == 0
    if left > _COARSE_MARGIN_NS:
        time.sleep((left - _COARSE_MARGIN_NS) * 1e-9)
    while time.monotonic_ns() < deadline_ns:
        time.sleep(_NAP_S)
