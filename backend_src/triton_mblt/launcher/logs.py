"""What of the server's output a person sees. Knows Triton's line format, nothing else.

Triton's own information lines become short progress lines; lines that every machine without an NVIDIA GPU prints are
dropped, since nothing is wrong; everything else (warnings, errors, what models print) passes unchanged.
"""

from __future__ import annotations

import re

from triton_mblt.core.errors import parse_error

_GLOG = re.compile(r'^(?P<level>[IWEF])\d{4} [\d:.]+ \d+ (?P<place>\S+:\d+)\] "?(?P<text>.*?)"?$')
_NO_GPU = (
    "Unable to allocate pinned system memory",
    "CUDA memory pool disabled",
    "CudaDriverHelper has not been initialized",
    "DCGM unable to start",
    "Failed to initialize NVML",
    "failed to allocate pinned system memory",
    "CUDA driver version is insufficient for CUDA runtime version",
    "failed to enable peer access",
)
# What Triton prints when it is told to stop while clients are connected: the launcher's own lines say it better.
_STOPPING = (
    "Signal (15) received",
    "Signal (11) received",
    "Exit timeout expired",
    "Non-graceful termination detected",
)
_LOADED = re.compile(r"successfully loaded '([^']+)'")
_FAILED = re.compile(r"failed to load '([^']+)' version \d+: (.*)", re.DOTALL)
_TABLE = re.compile(r"^(\+[-+]+\+|\|.*\|)$")


class ServerLog:
    """Filters the server's lines. Owned by the one thread that reads them."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self.failures: dict[str, str] = {}
        self._stopping = False

    def stopping(self) -> None:
        """From now on the server is being stopped, and its complaints about that are no news."""
        self._stopping = True

    def shown(self, line: str) -> str | None:
        """What to print for one line (without its newline), or None for nothing."""
        found = _GLOG.match(line)
        text = found["text"] if found else line
        failed = _FAILED.search(text)
        if failed:
            self.failures.setdefault(failed[1], _readable(failed[2]))
        if self._verbose:
            return line
        if any(noise in text for noise in _NO_GPU) or _TABLE.match(line) or not line.strip():
            return None
        if self._stopping and any(noise in text for noise in _STOPPING):
            return None
        loaded = _LOADED.search(text)
        if loaded:
            return f"  model {loaded[1]} is loaded"
        if found and found["level"] == "I":
            return None
        return line


def _readable(reason: str) -> str:
    """The cause alone: without Triton's status word, a Python traceback, or our machine-readable tail."""
    reason = reason.replace("\\n", "\n").split("\n\nAt:\n", 1)[0].strip()
    ours = parse_error(reason)
    return ours.message if ours else reason
