"""The whole stack stops: Ctrl-C with clients connected, and a killed tritonserver, leave no process or file behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lm_control import Control
from triton_calls import Stream
from triton_server import TritonServer, serving

from triton_mblt.core.errors import parse_error

pytestmark = pytest.mark.e2e
LIMIT_S = 5.0


def run_folder(server: TritonServer) -> Path:
    (folder,) = server.folder.glob(f"triton-mblt-{server.launcher_pid}-*")
    return folder


def processes(server: TritonServer) -> dict[int, str]:
    """Pid -> command of everything that this launcher started, directly or not."""
    mark = f"MBLT_RUN_DIR={run_folder(server)}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def shared_memory(run: Path) -> list[str]:
    return [entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(run.name)]


def within(limit_s: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.05)


def streaming(server: TritonServer) -> http.client.HTTPResponse:
    """An HTTP stream with a long answer, of which the first event has been read."""
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=30)
    body = {"text_input": "hello", "stream": True, "max_tokens": 400, "ignore_eos": True}
    connection.request("POST", "/v2/models/mblt/generate_stream", json.dumps(body))
    answer = connection.getresponse()
    assert b"text_output" in answer.readline()
    return answer


def test_ctrl_c_with_three_clients_of_which_one_streams(package: Path, tmp_path: Path) -> None:
    with serving(package, tmp_path) as server, Stream(server.grpc) as idle:
        idle.ask("mblt", text="hello", sampling={"max_tokens": 2})
        quiet = http.client.HTTPConnection(server.host, server.http_port)
        quiet.request("GET", "/v2/health/live")
        quiet.getresponse().read()
        Control(server).slow_down(0.05)
        answer, run, started = streaming(server), run_folder(server), processes(server)
        assert any("triton_mblt.worker" in command for command in started.values())
        assert shared_memory(run)
        asked = time.monotonic()
        os.kill(server.launcher_pid, signal.SIGINT)
        within(20, lambda: not run.exists())
        left = [command for pid, command in started.items() if Path(f"/proc/{pid}").exists()]
        took = time.monotonic() - asked
        assert left == []
        assert took <= LIMIT_S
        assert shared_memory(run) == []
        assert {path.name for path in tmp_path.iterdir()} <= {"server.log", "emulator"}
        assert list((tmp_path / "emulator").iterdir()) == []
        error = parse_error(json.loads(answer.read().rstrip().rpartition(b"data: ")[2]).get("error", ""))
        assert error is not None
        assert (error.code, error.message) == ("UNAVAILABLE", "the server is stopping")
        answer.close()
        quiet.close()


def test_a_killed_tritonserver_leaves_no_worker_and_is_started_again(package: Path, tmp_path: Path) -> None:
    with serving(package, tmp_path) as server:
        answer, started = streaming(server), processes(server)
        (triton,) = [pid for pid, command in started.items() if "bin/tritonserver " in command]
        os.kill(triton, signal.SIGKILL)
        within(LIMIT_S, lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
        within(120, lambda: "tritonserver is ready again" in server.log())
        streaming(server).close()
        answer.close()
