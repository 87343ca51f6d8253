"""Processes of a run: everything that was started ends, whoever its parent is, and nothing else does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from triton_mblt.core.settings import process_environment
from triton_mblt.launcher.backend_dir import STUB
from triton_mblt.launcher.process import ServerProcess
from triton_mblt.launcher.watchdog import Watchdog

SHELL = "/bin/sh"
SLEEP = shutil.which("sleep") or "/bin/sleep"


def eventually(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody has waited for has ended too)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in ("Z", "X")
    except OSError:
        return True


class Started:
    """Starts shell scripts as servers of one run, and ends them all at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"MBLT_RUN_DIR={folder}"
        self.lines: list[str] = []
        self._servers: list[ServerProcess] = []
        self._env = {**process_environment(), "MBLT_RUN_DIR": str(folder)}

    def __call__(self, script: str) -> ServerProcess:
        server = ServerProcess([SHELL, "-c", script], self._env, self.mark, self.lines.append)
        self._servers.append(server)
        return server

    def end(self) -> None:
        for server in self._servers:
            server.stop(0.1, lambda: True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.end()


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A program with the name of Triton's stub that does nothing for a minute."""
    program = tmp_path / STUB
    program.symlink_to(SLEEP)
    return program


def test_a_server_that_ends_on_sigterm_ends_by_itself(start: Started) -> None:
    server = start("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    eventually(lambda: "up" in start.lines)
    assert server.exit_code() is None
    assert server.stop(20.0) is True
    assert server.exit_code() == 7
    assert start.lines == ["up", "bye"]


def test_a_server_that_ignores_sigterm_is_killed_with_children_of_any_session(start: Started) -> None:
    server = start(f"trap '' TERM; setsid {SLEEP} 60 & {SLEEP} 61 & (setsid {SLEEP} 62 &) ; echo up; wait; wait")
    eventually(lambda: "up" in start.lines and len(server.processes()) == 4)
    pids = server.processes()
    assert server.stop(0.5) is False
    assert server.processes() == []
    assert all(gone(pid) for pid in pids)


def test_what_a_crashed_server_left_behind_is_ended(start: Started) -> None:
    server = start(f"setsid {SLEEP} 60 & echo up; wait")
    eventually(lambda: "up" in start.lines and len(server.processes()) == 2)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: server.exit_code() is not None)
    (left,) = server.processes()
    server.stop(1.0)
    assert gone(left)


def test_another_run_is_left_alone(start: Started, tmp_path: Path) -> None:
    other = Started(tmp_path / "other")
    try:
        theirs = other(f"echo up; exec {SLEEP} 60")
        mine = start(f"echo up; exec {SLEEP} 60")
        eventually(lambda: start.lines == other.lines == ["up"])
        mine.stop(0.5)
        assert theirs.exit_code() is None
    finally:
        other.end()


def test_a_second_request_does_not_wait(start: Started) -> None:
    server = start(f"trap '' TERM; echo up; {SLEEP} 60")
    eventually(lambda: "up" in start.lines)
    assert server.stop(1e6, hurry=lambda: True) is False


def test_the_server_is_out_of_reach_of_the_terminal(start: Started) -> None:
    server = start(f"echo up; exec {SLEEP} 60")
    eventually(lambda: "up" in start.lines)
    assert os.getsid(server.pid) == os.getpgid(server.pid) == server.pid != os.getsid(0)


def test_the_server_dies_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from triton_mblt.launcher.process import ServerProcess\n"
        f"env = {{**os.environ, 'MBLT_RUN_DIR': {str(tmp_path)!r}}}\n"
        f"server = ServerProcess([{SLEEP!r}, '60'], env, 'MBLT_RUN_DIR={tmp_path}', print)\n"
        f"while b'sleep' not in open(f'/proc/{{server.pid}}/cmdline', 'rb').read().split(b'\\0')[0]: time.sleep(0.02)\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    env = {**process_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    server = int(launcher.stdout.readline())
    assert not gone(server)
    launcher.kill()
    launcher.wait()
    eventually(lambda: gone(server))


def test_the_watchdog_sees_an_ended_server(start: Started) -> None:
    server, watchdog = start("exit 3"), Watchdog()
    watchdog.server_is_ready(server)
    eventually(lambda: server.exit_code() is not None)
    assert watchdog.trouble(server) == "tritonserver ended with exit code 3"


def test_the_watchdog_sees_a_dead_stub_that_triton_does_not(start: Started, stub: Path) -> None:
    server, watchdog = start(f"{stub} 60 & {stub} 61 & echo up; wait; sleep 60"), Watchdog()
    eventually(lambda: len(server.stubs()) == 2)
    watchdog.server_is_ready(server)
    assert watchdog.trouble(server) is None
    victim = min(server.stubs())
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: gone(victim))
    trouble = watchdog.trouble(server)
    assert trouble is not None
    assert str(victim) in trouble


class Silent:
    """A probe that has heard nothing, until the next server is ready."""

    def __init__(self) -> None:
        self.said: str | None = "lm does not answer"

    def trouble(self) -> str | None:
        return self.said

    def server_is_ready(self) -> None:
        self.said = None


def test_the_watchdog_asks_its_probe_and_tells_it_of_a_new_server(start: Started) -> None:
    server, watchdog = start(f"exec {SLEEP} 60"), Watchdog(Silent())
    assert watchdog.trouble(server) == "lm does not answer"
    watchdog.server_is_ready(server)
    assert watchdog.trouble(server) is None


def test_the_pause_doubles_up_to_a_limit_and_starts_over_after_a_quiet_time(start: Started) -> None:
    now = 0.0
    server = start(f"exec {SLEEP} 60")
    watchdog = Watchdog(backoff_s=1.0, backoff_max_s=4.0, settle_s=60.0, clock=lambda: now)
    watchdog.server_is_ready(server)
    pauses = [watchdog.pause_s() for _ in range(4)]
    now += 1000.0  # failing to become ready for long is no quiet time
    pauses.append(watchdog.pause_s())
    watchdog.server_is_ready(server)
    now += 61.0
    assert [*pauses, watchdog.pause_s()] == [1.0, 2.0, 4.0, 4.0, 4.0, 1.0]
