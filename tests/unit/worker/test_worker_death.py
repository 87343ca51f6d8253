"""A worker that dies, and a stub that dies: nobody waits for ever, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import ALLOCATE, HANG, HANG_WITH_GIL, answer
from lm_service import LIMIT_S, Collector, ask, fake_settings, request, running

from triton_mblt.worker.process import WorkerProcess
from triton_mblt.worker.protocol import Ready, Submit

FOREVER = 10**6


def test_ten_kills_with_eight_open_requests_each() -> None:
    with running() as service:
        killed: list[Collector] = []
        for turn in range(10):
            askers = [ask(service, [10 + i], max_tokens=FOREVER, key=i) for i in range(8)]
            for asker in askers:
                asker.wait_some()
            pid = service.stats()["workers"][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            after = ask(service, [20 + turn])  # at once: the death may not even be known yet
            for asker in askers:
                error = asker.wait_final().error
                assert error is not None
                assert error.code == "UNAVAILABLE"
                assert "SIGKILL" in error.message
            # Sent right after the kill: either it went down with the old worker or the next one answers it.
            if after.code is not None:
                after = ask(service, [20 + turn])
            assert after.code is None
            assert after.tokens == answer([20 + turn], 5)
            killed += askers
        assert [asker.finals for asker in killed] == [1] * 80
        stats = service.stats()
        assert (stats["open_requests"], stats["workers"][0]["restarts"]) == (0, 10)
        assert sum(thread.name == "mblt-sender" for thread in threading.enumerate()) == 1


def test_a_request_that_a_dead_worker_never_read_goes_to_another(tmp_path: Path) -> None:
    """Also when the dead one cannot be started again."""
    package = tmp_path / "package"
    package.touch()
    with running(fake_settings(model=f"file:{package}"), workers=2) as service:
        _eventually(lambda: all(worker["state"] == "ready" for worker in service.stats()["workers"]))
        pids = [worker["pid"] for worker in service.stats()["workers"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # neither reads what comes now
        askers = [ask(service, [10 + i], key=i) for i in range(2)]  # one for each
        package.unlink()
        os.kill(pids[0], signal.SIGKILL)
        _eventually(lambda: service.stats(timeout_s=0.0)["workers"][0]["state"] == "failed")
        os.kill(pids[1], signal.SIGCONT)
        assert [asker.code for asker in askers] == [None, None]


def test_a_killed_worker_that_loads_is_started_again() -> None:
    with running(fake_settings(model="slow"), wait=False) as service:
        pid = _eventually(lambda: service.stats()["workers"][0]["pid"])
        os.kill(pid, signal.SIGKILL)
        service.wait_ready(LIMIT_S)
        assert ask(service, [10]).code is None


def test_the_memory_limit_ends_the_worker_not_the_machine() -> None:
    with running(fake_settings(worker_memory_mb=512)) as service:
        error = ask(service, [ALLOCATE]).wait_final().error
        assert error is not None
        assert "exit code 1" in error.message
        assert ask(service, [10]).code is None


def test_a_worker_in_a_device_call_ends_when_its_socket_is_closed() -> None:
    worker = WorkerProcess.start(fake_settings(), 0, "fake_engine:FakeEngine")
    try:
        assert isinstance(worker.receive(LIMIT_S), Ready)
        with running() as service:
            worker.send(Submit(request(service, [HANG])))
        worker._channel.close()
        assert worker.wait(LIMIT_S) == 0
    finally:
        worker.reap()


@pytest.mark.parametrize("trouble", [None, HANG, HANG_WITH_GIL])
def test_a_worker_ends_with_its_killed_stub(trouble: int | None) -> None:
    program = f"""
import sys
from fake_engine import *
from lm_service import ask, running
with running() as service:
    pid = service.stats()["workers"][0]["pid"]
    trouble = {trouble}
    if trouble is not None:
        ask(service, [trouble])
        while service.stats(timeout_s=0.1)["workers"][0]["engine"] is not None:
            pass
    print(pid, flush=True)
    sys.stdin.read()
"""
    with _python(program) as stub:
        (worker,) = _numbers(stub)
        assert _alive(worker)
        stub.kill()
        stub.wait()
        _eventually(lambda: not _alive(worker), limit_s=2.0)


def test_a_worker_ends_with_the_killed_server_of_a_stub_that_lives_on() -> None:
    stub_program = """
import os, time
from lm_service import running
with running() as service:
    print(os.getpid(), service.stats()["workers"][0]["pid"], flush=True)
    time.sleep(60)
"""
    server_program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stub_program!r}])"
    with _python(server_program) as server:
        stub, worker = _numbers(server)
        assert _alive(worker)
        server.kill()
        server.wait()
        _eventually(lambda: not _alive(worker), limit_s=2.0)
        assert _alive(stub)
        os.kill(stub, signal.SIGKILL)


@contextlib.contextmanager
def _python(program: str) -> Iterator[subprocess.Popen[str]]:
    path = [str(Path(__file__).parents[2] / "support"), str(Path(__file__).parents[3] / "backend_src")]
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _numbers(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def _alive(pid: int) -> bool:
    """A zombie that nobody collects (this container's init may not) counts as gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def _eventually(condition, limit_s: float = LIMIT_S):
    limit = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < limit, "it did not come to pass"
        time.sleep(0.005)
    return found
