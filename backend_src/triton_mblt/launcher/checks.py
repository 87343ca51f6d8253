"""Single facts about this machine and environment, each a function that returns a frozen Finding.

Knows nothing of a running server. `doctor.py` chooses and prints; `server.py` uses the port check.
"""

from __future__ import annotations

import ctypes.util
import errno
import importlib.metadata
import importlib.util
import platform
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triton_mblt.core.errors import ConfigError
from triton_mblt.launcher.backend_dir import find_embedded_server, shared_libpython

Verdict = Literal["ok", "note", "missing"]
TAKEN = "is taken"
# 1 MiB for each of five stubs, and what a burst of requests adds.
_SHM_LEAST_MB = 64
_SERVER_GLIBC = (2, 35)  # of the nvidia-pytriton wheel
_PERF_ANALYZER_GLIBC = (2, 38)
_PYTHONS = ((3, 10), (3, 11), (3, 12))
# Import name -> name for pip.
_PACKAGES = {
    "torch": "torch",
    "msgspec": "msgspec",
    "tokenizers": "tokenizers",
    "jinja2": "jinja2",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "transformers_mblt": "transformers-mblt",
    "mblt_npu": "mblt-npu-python",
}


@dataclass(frozen=True)
class Finding:
    """`missing` stops the server from working; `note` limits something else; `advice` says what to do."""

    subject: str
    verdict: Verdict
    text: str
    advice: str = ""


def python_version(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    text = f"Python {version[0]}.{version[1]}"
    if version in _PYTHONS:
        return Finding("python", "ok", text)
    return Finding(
        "python", "missing", f"{text} is not supported", "use Python 3.10, 3.11 or 3.12 (make ... PYTHON=python3.11)"
    )


def embedded_server() -> Finding:
    try:
        server = find_embedded_server()
    except ConfigError as error:
        return Finding("server", "missing", error.message, "run `make setup`")
    return Finding("server", "ok", f"tritonserver and a stub for this Python in {server.site_packages}")


def libpython() -> Finding:
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    found = shared_libpython()
    if found is not None:
        return Finding("libpython", "ok", str(found))
    if ctypes.util.find_library(name[3:].split(".so")[0]) is not None:
        return Finding(
            "libpython", "note", f"this Python was built without {name}; the model processes use the system's"
        )
    return Finding(
        "libpython",
        "missing",
        f"{name}, which the model processes load, was not found",
        f"apt-get install {name.split('.so')[0]} (pyenv: install Python with PYTHON_CONFIGURE_OPTS=--enable-shared)",
    )


def numpy_version() -> Finding:
    version = _installed("numpy")
    if version is None:
        return Finding("numpy", "missing", "numpy is not installed", "run `make setup`")
    if int(version.split(".", 1)[0]) >= 2:
        return Finding(
            "numpy",
            "missing",
            f"numpy {version} beside the embedded server: its models would hand out tensors with 0 bytes",
            "pip install 'numpy<2' in this environment (a newer Triton of your own takes numpy 2)",
        )
    return Finding("numpy", "ok", f"numpy {version}")


def packages() -> list[Finding]:
    findings = [
        Finding(package, "missing", f"the package {package} is not installed", "run `make setup`")
        for module, package in _PACKAGES.items()
        if importlib.util.find_spec(module) is None
    ]
    return findings or [Finding("packages", "ok", "all Python packages are installed")]


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    try:
        free_mb = shutil.disk_usage(folder).free // (1024 * 1024)
    except OSError as error:
        return Finding("shared memory", "missing", f"{folder} cannot be used: {error.strerror}", "mount a tmpfs there")
    if free_mb < _SHM_LEAST_MB:
        return Finding(
            "shared memory",
            "missing",
            f"{folder} has {free_mb} MB free, {_SHM_LEAST_MB} MB are needed",
            "in a container: --shm-size=256m; else remove what fills it",
        )
    return Finding("shared memory", "ok", f"{folder} has {free_mb} MB free")


def port(name: str, address: str, number: int) -> Finding:
    trouble = port_trouble(address, number)
    if trouble is not None:
        advice = f"stop what uses it, or set {name}=..." if trouble == TAKEN else "choose another address or port"
        return Finding(name, "missing", f"port {number} on {address} {trouble}", advice)
    return Finding(name, "ok", f"port {number} on {address} is free")


def glibc(libc: tuple[str, str] | None = None) -> Finding:
    """`libc` is what platform.libc_ver() says, the default."""
    name, text = platform.libc_ver() if libc is None else libc
    version = tuple(int(part) for part in text.split(".") if part.isdigit())
    if name != "glibc" or not version:
        return Finding("glibc", "missing", "no glibc was recognised; tritonserver needs it", "use a glibc distribution")
    if version < _SERVER_GLIBC:
        return Finding(
            "glibc",
            "missing",
            f"glibc {text} is older than the 2.35 that the embedded tritonserver needs",
            "use a newer distribution (Debian 12, Ubuntu 22.04), a container, or a Triton of your own",
        )
    if version < _PERF_ANALYZER_GLIBC:
        return Finding(
            "glibc",
            "note",
            f"glibc {text}: enough for serving; the perf_analyzer of PyPI wants 2.38",
            "only perf_analyzer is affected: run it on a newer system",
        )
    return Finding("glibc", "ok", f"glibc {text}")


def port_trouble(address: str, number: int) -> str | None:
    """Why a listener could not be opened there now (TAKEN or the system's reason), None when it could."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, number))
            probe.listen(1)
        except OSError as error:
            return TAKEN if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror or error})"
    return None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
