"""Starting one NPU worker process and ending it: interpreter, environment, socket pair.

Owns the child and the stub's end of the socket. Does not know why a worker is started or what it says.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import triton_mblt
from triton_mblt.core.errors import ConfigError
from triton_mblt.core.settings import Settings, process_environment
from triton_mblt.worker.protocol import Channel, Start, ToStub, ToWorker, stub_end

PRODUCT_ENGINE = "triton_mblt.engine.load"
_PACKAGE_ROOT = Path(triton_mblt.__file__).resolve().parent.parent
# The folder of the emulator's package `qbruntime`, named by place, so that a stub imports nothing of the emulator.
_EMULATOR_SITE = _PACKAGE_ROOT / "triton_mblt" / "emulator" / "site"


class WorkerProcess:
    """A running worker. `start` must be called on a thread that outlives the worker: the kernel kills a worker when the
    thread that forked it ends. `receive` belongs to one thread, `send` to one thread."""

    def __init__(self, child: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._child = child
        self._sock = sock
        self._channel: Channel[ToStub] = stub_end(sock)

    @classmethod
    def start(cls, settings: Settings, index: int, engine: str) -> WorkerProcess:
        """Fork a worker and send it the deployment. Raises OSError (no more processes) and ConfigError (no Python)."""
        environment = worker_environment(settings)
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        command = [find_python(environment["PYTHONPATH"]), "-m", "triton_mblt.worker.main", "--fd", str(fd)]
        command += ["--parent", str(os.getpid()), "--index", str(index), "--engine", engine]
        try:
            # Its own session: Ctrl-C in a terminal is for the server, which ends its workers in order.
            child = subprocess.Popen(
                command, env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = cls(child, ours)
        with contextlib.suppress(OSError):  # it died at once: receive() will say so
            worker.send(Start(settings))
        return worker

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, message: ToWorker) -> None:
        """Raises OSError when the worker is gone."""
        self._channel.send(message)

    def receive(self, limit_s: float | None = None) -> ToStub | None:
        """The next message; None when the worker is gone, or said nothing for `limit_s`."""
        self._sock.settimeout(limit_s)
        message = self._channel.receive()
        if message is not None and limit_s is not None:
            self._sock.settimeout(None)
        return message

    def wait(self, limit_s: float) -> int | None:
        """Exit code (negative: the signal that ended it), or None when it is still there after `limit_s`."""
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Send SIGKILL; from any thread, idempotent. The reading thread then sees the end and reaps."""
        self._child.kill()

    def reap(self) -> int:
        """End it if it has not ended, collect it and close the socket. Returns the exit code. Idempotent."""
        self._child.kill()
        code = self._child.wait()
        self._channel.close()
        return code


def worker_environment(settings: Settings) -> dict[str, str]:
    """The stub's environment with a PYTHONPATH of the worker's own: the emulator's `qbruntime` is first for an emulated
    NPU and nowhere for a device, whatever the stub inherited."""
    environment = process_environment()
    site = str(_EMULATOR_SITE)
    inherited = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part and part != site]
    first = []
    if settings.npu == "emulated":
        if not _EMULATOR_SITE.is_dir():
            raise ConfigError("the emulated NPU is not part of this installation", param="npu")
        first = [site]
    root = str(_PACKAGE_ROOT)
    rest = [part for part in inherited if part != root]
    environment["PYTHONPATH"] = os.pathsep.join([*first, root, *rest])
    # Set before torch is imported: its threads would otherwise spin between operations, against the server's own.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Python's heap in huge pages: what a step touches after the device call is cold, and page walks are half of that.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    environment.setdefault("PYTHONMALLOC", "malloc")
    return environment


@functools.cache
def find_python(python_path: str) -> str:
    """A Python program of this process's version that can import the product's base packages.

    Inside a Triton stub the interpreter is embedded: `sys.executable` may be empty or name the stub. Raises
    ConfigError.
    """
    tried = []
    for program in _python_candidates():
        if _is_our_python(program, python_path):
            return program
        tried.append(program)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise ConfigError(f"no Python {version} with msgspec and numpy for the NPU worker among {tried}", param="PATH")


def _python_candidates() -> Iterator[str]:
    names = [f"python{sys.version_info[0]}.{sys.version_info[1]}", "python3", "python"]
    environment = process_environment()
    if sys.executable and Path(sys.executable).name.startswith("python"):
        yield sys.executable
    folders = [Path(environment["VIRTUAL_ENV"], "bin")] if environment.get("VIRTUAL_ENV") else []
    for folder in [*folders, Path(sys.prefix, "bin")]:
        yield from (str(folder / name) for name in names if (folder / name).is_file())
    for name in names:
        found = shutil.which(name)
        if found is not None:
            yield found


def _is_our_python(program: str, python_path: str) -> bool:
    check = f"import sys, msgspec, numpy; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    environment = {**process_environment(), "PYTHONPATH": python_path}
    try:
        done = subprocess.run(
            [program, "-c", check],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
