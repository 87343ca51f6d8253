"""Waiting until a moment, closely, without holding the interpreter."""

from __future__ import annotations

import time

_COARSE_MARGIN_NS = 250_000  # a sleep may end this late on a busy machine
_NAP_S = 20e-6


def wait_until(deadline_ns: int) -> None:
    """Return at `deadline_ns` of the monotonic clock or as shortly after as the system allows."""
    left = deadline_ns - time.monotonic_ns()
    if left > _COARSE_MARGIN_NS:
        time.sleep((left - _COARSE_MARGIN_NS) * 1e-9)
    while time.monotonic_ns() < deadline_ns:
        time.sleep(_NAP_S)
