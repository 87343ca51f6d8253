"""Decides when a running server has to be started again, and how long to wait before. Starts and stops nothing itself.

Triton answers "ready" with a dead stub and never restarts one, so the processes are looked at directly; what a process
table cannot show (a stub that lives but answers nothing) is for the optional `probe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from triton_mblt.launcher.process import ServerProcess


class Probe(Protocol):
    """A way to see trouble that the process table does not show. Must not block."""

    def trouble(self) -> str | None:
        """What is wrong, in plain words, or None."""

    def server_is_ready(self) -> None:
        """A server has just become ready: forget what was wrong with the one before."""


class Watchdog:
    """Watches one server, through its restarts."""

    def __init__(
        self,
        probe: Probe | None = None,
        *,
        backoff_s: float = 0.5,
        backoff_max_s: float = 30.0,
        settle_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._first, self._max, self._settle = backoff_s, backoff_max_s, settle_s
        self._clock = clock
        self._backoff = backoff_s
        self._ready_since: float | None = None
        self._stubs: frozenset[int] = frozenset()

    def server_is_ready(self, server: ServerProcess) -> None:
        """Take note of a server that has just become ready, and of its stubs."""
        self._ready_since = self._clock()
        self._stubs = server.stubs()
        if self._probe is not None:
            self._probe.server_is_ready()

    def trouble(self, server: ServerProcess) -> str | None:
        """Why the server has to be restarted, in plain words, or None."""
        code = server.exit_code()
        if code is not None:
            return f"tritonserver ended with {describe_exit(code)}"
        dead = self._stubs - server.stubs()
        if dead:
            return f"a model process of tritonserver died (pid {', '.join(map(str, sorted(dead)))})"
        return self._probe.trouble() if self._probe is not None else None

    def pause_s(self) -> float:
        """How long to wait before the next start: doubled with each, back at the first value after a quiet time."""
        if self._ready_since is not None and self._clock() - self._ready_since > self._settle:
            self._backoff = self._first
        self._ready_since = None
        pause, self._backoff = self._backoff, min(2 * self._backoff, self._max)
        return pause


def describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
