"""Tells when the process that started this one (for a stub: the Triton server) is gone: a pidfd and a waiting thread.

A stub notices a killed server by itself, but only after seconds, and its workers hold the NPU until then.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable


class ParentWatch:
    """Calls `on_death` once, on a thread of its own, when the parent ends before `close`."""

    def __init__(self, on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="mblt-parent", daemon=True)
        self._parent = -1

    def start(self) -> None:
        """Raises OSError where the kernel (before 5.3), a sandbox, or this build of Python (conda's) has no pidfds."""
        if not hasattr(os, "pidfd_open"):
            raise OSError(errno.ENOSYS, "this Python was built without pidfd_open")
        self._parent = os.pidfd_open(os.getppid())
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._wake_write < 0:
            return
        os.close(self._wake_write)
        self._wake_write = -1
        if self._thread.ident is not None:
            self._thread.join()
            os.close(self._parent)
        os.close(self._wake_read)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._parent, select.POLLIN)
        poll.register(self._wake_read, select.POLLHUP)
        ready = {fd for fd, _ in poll.poll()}
        if self._parent in ready:
            self._on_death()
