"""Replaces itself by a command that dies with its parent: `python exec_guard.py PARENT_PID COMMAND [ARGUMENT ...]`.

A file of its own, run by a fresh interpreter, because running Python between fork and exec is unsafe in a parent with
threads. Only the thread that started this process counts as its parent for the kernel: start it from the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # died before the kernel was told
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
