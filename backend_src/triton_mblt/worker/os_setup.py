"""What a worker asks of the operating system at birth: to die with its stub, clean signals, a name, a memory limit.

Knows nothing of models or messages.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends; exit now if it is gone already.

    The socket's EOF says the same, but only to a process whose Python runs; the signal also ends one that hangs in
    native code.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def clean_signals() -> None:
    """Undo what a stub's host may have set: signals that it ignores or blocks are inherited through exec."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C is for the server; its stub ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def set_process_name(name: str) -> None:
    """The name that `ps` and `top` show, cut to 15 bytes by the kernel."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def prefer_this_thread(nice: int, realtime: bool) -> bool:
    """Give the calling thread (and the threads it starts) a priority of its own: between two device calls the NPU waits
    for it. False when the system does not allow it (negative `nice` and real time need root or CAP_SYS_NICE)."""
    try:
        if realtime:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        else:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except PermissionError:
        return False
    return True


def limit_memory(megabytes: int) -> None:
    """Let allocations fail above this. RLIMIT_DATA counts memory that is written to, not weights mapped from files."""
    size = megabytes * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    if libc.prctl(ctypes.c_int(option), argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
