"""A real tritonserver for tests, as a child on free ports, stopped at the end: by our launcher, or the bare binary.

Owns the child and a temporary folder for the emulator's counters and the server's log.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton_mblt
from triton_mblt.launcher.backend_dir import assemble, find_embedded_server

SOURCE = Path(triton_mblt.__file__).parents[1]
START_LIMIT_S = 180.0


@dataclass(frozen=True)
class TritonServer:
    """A ready server. `folder` holds its log (`server.log`) and the emulator's counters (`emulator/`)."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    folder: Path
    env: dict[str, str]
    launcher_pid: int

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    @property
    def http(self) -> str:
        return f"{self.host}:{self.http_port}"

    def cli(self, *arguments: str) -> str:
        """What `triton-mblt` prints, run beside this server."""
        done = subprocess.run(
            [sys.executable, "-m", "triton_mblt", *arguments],
            env=self.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def keys(self) -> dict[str, str]:
        """The route key and the admin key, from the launcher's run folder."""
        (folder,) = Path(self.env["TMPDIR"]).glob(f"triton-mblt-{self.launcher_pid}-*")
        return {name: (folder / f"{name}.key").read_text().strip() for name in ("route", "admin")}

    def get(self, path: str) -> tuple[int, bytes]:
        return self.request("GET", path)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        return self.request("POST", path, json.dumps(body).encode(), headers)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")


@contextlib.contextmanager
def serving(package: Path, folder: Path, *arguments: str, **env: str) -> Iterator[TritonServer]:
    """Serve `package` by our launcher for the time of the block. `folder` is an empty folder; `env` adds variables."""
    command = [sys.executable, "-m", "triton_mblt", "serve", "--npu", "emulated", "--model", str(package), *arguments]
    with _running(folder, env, lambda http, grpc, metrics: [
        *command, "--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics),
    ]) as server:  # fmt: skip
        yield server


@contextlib.contextmanager
def plain_triton(repository: Path, folder: Path, *arguments: str, **env: str) -> Iterator[TritonServer]:
    """The bare tritonserver binary on a repository: what a user with a server of their own starts."""
    embedded = find_embedded_server()
    backends, library = assemble(embedded, folder)
    env = {
        "LD_LIBRARY_PATH": f"{library}:{embedded.libraries}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(embedded.site_packages),
        **env,
    }
    command = [str(embedded.binary), f"--model-repository={repository}", f"--backend-directory={backends}", *arguments]
    command += [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")]
    with _running(folder, env, lambda http, grpc, metrics: [
        *command, f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}",
    ], signal.SIGTERM) as server:  # fmt: skip
        yield server


@contextlib.contextmanager
def _running(
    folder: Path,
    env: Mapping[str, str],
    command: Callable[[int, int, int], list[str]],
    stop: signal.Signals = signal.SIGINT,
) -> Iterator[TritonServer]:
    """A server on free ports, ready when the block begins. `command` makes the command line from its three ports."""
    ports = free_ports(3)
    variables = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        "MBLT_EMULATOR_RUN_DIR": str(folder / "emulator"),
        **env,
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command(*ports), env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )  # fmt: skip
    server = TritonServer("127.0.0.1", *ports, folder, variables, process.pid)
    try:
        _wait_ready(process, server)
        yield server
    finally:
        process.send_signal(stop)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _wait_ready(process: subprocess.Popen[bytes], server: TritonServer) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.get("/v2/health/ready")[0] == 200:
                return
        if process.poll() is not None or time.monotonic() > limit:
            raise AssertionError(f"the server did not become ready:\n{server.log()[-4000:]}")
        time.sleep(0.1)
