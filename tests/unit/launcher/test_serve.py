"""`triton-mblt serve` with a real tritonserver and a model of a few lines: ready, closed, restarted, stopped."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from triton_mblt.core.settings import process_environment
from triton_mblt.launcher.command import KEY_HEADER

pytestmark = pytest.mark.e2e

CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [1] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [1] } ]
"""
# Repeats its input ten times a second until it is cancelled or unloaded.
ECHO = """
import threading
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.stop = threading.Event()
    def execute(self, requests):
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            threading.Thread(target=self.repeat, args=(request.get_response_sender(), text), daemon=True).start()
    def repeat(self, sender, text):
        while not (sender.is_cancelled() or self.stop.wait(0.1)):
            sender.send(pb.InferenceResponse([pb.Tensor("text_output", np.array([text], dtype=object))]))
        sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    def finalize(self):
        self.stop.set()
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the weights are made of cheese")
"""
SLOW = """
import time

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(4)
"""


def eventually(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def repository(folder: Path, code: str) -> Path:
    """`folder`, with a `repository` in it that has the model echo."""
    model = folder / "repository" / "echo"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "1" / "model.py").write_text(code)
    return folder


def free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Serve:
    """One `triton-mblt serve` process and what can be seen of it from outside."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.temp = folder / "temp"
        self.temp.mkdir(exist_ok=True)
        self.http, self.grpc, self.metrics = free_ports()
        self._log = (folder / "log").open("w+")
        command = [sys.executable, "-m", "triton_mblt", "serve", "--npu", "emulated"]
        command += ["--repository", str(folder / "repository"), *options]
        command += ["--http-port", str(self.http), "--grpc-port", str(self.grpc), "--metrics-port", str(self.metrics)]
        env = {**process_environment(), "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(self.temp)}
        self.process = subprocess.Popen(command, env=env, stdout=self._log, stderr=subprocess.STDOUT)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def wait_ready(self, times: int = 1) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return self.log().count(" is ready ") == times

        eventually(is_ready, 60)

    def run_dir(self) -> Path:
        (folder,) = self.temp.glob(f"triton-mblt-{self.process.pid}-*")
        return folder

    def children(self) -> dict[str, int]:
        """Program name -> pid, of all processes that carry this run's mark."""
        mark = f"MBLT_RUN_DIR={self.run_dir()}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # another user's, or gone
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[Path((entry / "cmdline").read_bytes().split(b"\0")[0].decode()).name] = int(entry.name)
        return found

    def request(self, method: str, path: str, body: str = "", key: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=20)
        try:
            connection.request(method, path, body, {KEY_HEADER: key} if key else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def stream(self) -> http.client.HTTPResponse:
        """An open answer that never ends by itself; its first event has been read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=30)
        connection.request("POST", "/v2/models/echo/generate_stream", json.dumps({"text_input": "hi"}))
        answer = connection.getresponse()
        assert "hi" in answer.readline().decode()
        return answer

    def kill(self) -> None:
        """End everything at the end of a test, whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # equal signals that are pending together arrive as one
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
        self._log.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    serve = Serve(repository(tmp_path, ECHO))
    yield serve
    serve.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def shared_memory(run_dir: Path) -> list[str]:
    """Entries of one run (other servers of this machine come and go)."""
    return [entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(run_dir.name)]


def test_the_server_says_what_it_is_and_is_closed(serve: Serve) -> None:
    serve.wait_ready()
    banner = serve.log()
    for part in ("EMULATED NPU", f"http://127.0.0.1:{serve.http}", f"127.0.0.1:{serve.grpc}", "curl -N", "Ctrl-C"):
        assert part in banner
    assert "NVML" not in banner
    key = (serve.run_dir() / "route.key").read_text().strip()
    restricted = [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/echo/load"),
        ("POST", "/v2/repository/models/echo/unload"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/models/echo/trace/setting"),
    ]
    for method, path in restricted:
        status, text = serve.request(method, path, "{}")
        assert (status, "restricted" in text) == (403, True), (path, status, text)
    assert serve.request("POST", "/v2/repository/index", "{}", key)[0] == 200
    assert serve.request("POST", "/v2/repository/index", "{}", "wrong")[0] == 403
    with triton.InferenceServerClient(f"127.0.0.1:{serve.grpc}") as client:
        calls: list[Callable[..., object]] = [
            client.get_model_repository_index,
            lambda **more: client.load_model("echo", **more),
            lambda **more: client.register_system_shared_memory("x", "/x", 8, **more),
            lambda **more: client.update_log_settings({"log_info": False}, **more),
            lambda **more: client.update_trace_settings("", {"trace_level": ["TIMESTAMPS"]}, **more),
        ]
        for call in calls:
            with pytest.raises(InferenceServerException, match="restricted"):
                call()
        calls[0](headers={f"triton-grpc-protocol-{KEY_HEADER}": key})


def test_ctrl_c_with_three_clients_leaves_nothing(tmp_path: Path) -> None:
    serve = Serve(repository(tmp_path, ECHO))
    try:
        serve.wait_ready()
        idle_http = http.client.HTTPConnection("127.0.0.1", serve.http)
        idle_http.request("GET", "/v2/health/live")
        idle_http.getresponse().read()
        idle_grpc = triton.InferenceServerClient(f"127.0.0.1:{serve.grpc}")
        texts: list[object] = []
        idle_grpc.start_stream(lambda result, error: texts.append((result, error)))
        given = triton.InferInput("text_input", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"hi"], dtype=object))
        idle_grpc.async_stream_infer("echo", [given])
        eventually(lambda: len(texts) > 1, 20)
        answer = serve.stream()
        reader = threading.Thread(target=lambda: [None for _ in iter(answer.readline, b"")], daemon=True)
        reader.start()
        pids = serve.children().values()
        run_dir = serve.run_dir()
        assert len(pids) >= 2
        assert shared_memory(run_dir)
        asked = time.monotonic()
        serve.process.send_signal(signal.SIGINT)
        assert serve.process.wait(20) == 0
        took = time.monotonic() - asked
        assert took <= 5.0, f"{took:.1f} s"
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []  # not even a zombie
        assert not run_dir.exists()
        assert shared_memory(run_dir) == []
        idle_grpc.close()
        idle_http.close()
    finally:
        serve.kill()


def test_a_killed_server_is_started_again_and_its_stubs_are_gone(serve: Serve) -> None:
    serve.wait_ready()
    before = serve.children()
    os.kill(before["tritonserver"], signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in before.values()), 5)
    eventually(lambda: "tritonserver is ready again" in serve.log(), 60)
    assert serve.stream().status == 200


def test_a_dead_stub_makes_the_server_start_again(serve: Serve) -> None:
    serve.wait_ready()
    os.kill(serve.children()["triton_python_backend_stub"], signal.SIGKILL)
    eventually(lambda: "tritonserver is ready again" in serve.log(), 60)
    assert serve.stream().status == 200


def test_a_killed_launcher_takes_the_server_along_and_the_next_one_cleans_up(serve: Serve, tmp_path: Path) -> None:
    serve.wait_ready()
    pids, run_dir = serve.children().values(), serve.run_dir()
    serve.process.kill()
    serve.process.wait()
    eventually(lambda: not any(alive(pid) for pid in pids), 10)
    (run_dir / "left").touch()
    following = Serve(tmp_path)
    try:
        following.wait_ready()
        assert not run_dir.exists()
        assert shared_memory(run_dir) == []
    finally:
        following.kill()


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    serve = Serve(repository(tmp_path, ECHO), "--stop-limit-s", "1000")
    try:
        serve.wait_ready()
        answer, pids = serve.stream(), serve.children().values()  # the open answer keeps Triton for its limit, 500 s
        serve.process.send_signal(signal.SIGINT)
        eventually(lambda: "stopping" in serve.log(), 10)
        serve.process.send_signal(signal.SIGINT)
        assert serve.process.wait(20) == 0
        assert [pid for pid in pids if alive(pid)] == []
        answer.close()
    finally:
        serve.kill()


def test_a_model_that_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    serve = Serve(repository(tmp_path, BROKEN))
    try:
        assert serve.process.wait(60) == 1
        assert "model echo cannot be loaded: " in serve.log()
        assert "the weights are made of cheese" in serve.log()
        assert list(serve.temp.glob("triton-mblt-*")) == []
        assert tempfile.gettempdir() != str(serve.temp)
    finally:
        serve.kill()


class Stranger(BaseHTTPRequestHandler):
    """A server that calls itself ready."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"name": "triton"}')

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""


def test_a_stranger_that_takes_the_port_while_models_load_is_not_taken_for_ours(tmp_path: Path) -> None:
    serve = Serve(repository(tmp_path, SLOW))
    try:
        eventually(lambda: bool(list(serve.temp.glob("triton-mblt-*"))), 20)
        with ThreadingHTTPServer(("127.0.0.1", serve.http), Stranger) as stranger:
            threading.Thread(target=stranger.serve_forever, daemon=True).start()
            assert serve.process.wait(60) == 1
            stranger.shutdown()
        assert "is ready" not in serve.log()
        assert "already in use" in serve.log()
    finally:
        serve.kill()
