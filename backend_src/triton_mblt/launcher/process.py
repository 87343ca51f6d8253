"""One tritonserver process with all that it started: start, follow its output, end everything.

The server runs in a session of its own, so a terminal's Ctrl-C reaches the launcher alone, and dies with the launcher
(exec_guard). Its stubs and their workers are recognised by the run folder's path in their inherited environment: a
process whose parents are gone can still be found, and no process of anyone else's can be met.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from triton_mblt.launcher import exec_guard
from triton_mblt.launcher.backend_dir import STUB

_POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of stubs and workers whose own parent ends, to reap them.

    In a container whose first process reaps nobody they would stay as zombies. For a process without other children.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class ServerProcess:
    """A running tritonserver. Make it in the main thread (see exec_guard). `on_line` is called from a reader thread."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], mark: str, on_line: Callable[[str], None]
    ) -> None:
        """`mark` is the `NAME=value` in `env` that only processes of this run have."""
        self._mark = mark
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", exec_guard.__file__, str(os.getpid()), *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(on_line,), name="server-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while the server runs; else its exit code, negative for the signal that ended it."""
        return self._process.poll()

    def stubs(self) -> frozenset[int]:
        """Pids of the living python stubs of this server."""
        return frozenset(pid for pid in self.processes() if _program(pid) == STUB)

    def processes(self) -> list[int]:
        """Pids of all living processes of this run: the server, its stubs, their workers."""
        mark = self._mark.encode()
        return [pid for pid in _own_pids() if mark in _environment(pid)]

    def stop(self, limit_s: float, hurry: Callable[[], bool] = lambda: False) -> bool:
        """End the server and all that it started, within about `limit_s`. True when the server ended by itself.

        SIGTERM to the server alone, which finalises its models; when `hurry()` or four fifths of the limit have passed
        (a connected client can keep Triton alive for ever), SIGKILL to everything that is left.
        """
        patience = time.monotonic() + 0.8 * limit_s
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None and time.monotonic() < patience and not hurry():
            time.sleep(_POLL_S)
        graceful = self._process.poll() is not None
        if graceful:  # workers of ended stubs leave by themselves, give them a moment
            grace = min(patience, time.monotonic() + 0.1 * limit_s)
            while self.processes() and time.monotonic() < grace and not hurry():
                time.sleep(_POLL_S)
        self._kill_rest(time.monotonic() + 0.2 * limit_s)
        self._process.wait()
        self._reader.join(timeout=1.0)
        return graceful

    def _kill_rest(self, deadline: float) -> None:
        while True:
            left = self.processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            self._reap()
            if not left or time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def _reap(self) -> None:
        """Take leave of ended processes that became our children (see adopt_orphans)."""
        for pid in _own_pids():
            if pid != self._process.pid and _stat(pid)[:2] == ["Z", str(os.getpid())]:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _read(self, on_line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            on_line(raw.decode(errors="replace").rstrip("\n"))


def _own_pids() -> list[int]:
    uid = os.getuid()
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                pids.append(int(entry.name))
    return pids


def _environment(pid: int) -> list[bytes]:
    """The environment with which a process was started; empty for one that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name: state, parent, ...; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _program(pid: int) -> str:
    try:
        return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0])).name
    except OSError:
        return ""
