"""The runtime's log: glog-like lines on stderr, with one level for the process."""

from __future__ import annotations

import os
import sys
import time
from enum import Enum


class LogLevel(Enum):
    """Lines below the set level are dropped; Off drops all."""

    Debug = 1
    Info = 2
    Warn = 3
    Err = 4
    Fatal = 5
    Off = 6


_level = LogLevel.Info


def set_log_level(level: LogLevel) -> None:
    """Set the level for the whole process. AttributeError for anything but a LogLevel."""
    global _level
    _level = LogLevel(level.value)


def info(text: str) -> None:
    """Log at Info."""
    _write(LogLevel.Info, text)


def warn(text: str) -> None:
    """Log at Warn."""
    _write(LogLevel.Warn, text)


def error(text: str) -> None:
    """Log at Err."""
    _write(LogLevel.Err, text)


def _write(level: LogLevel, text: str) -> None:
    if level.value < _level.value:
        return
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    print(f"{level.name[0]}{stamp} {os.getpid()} emulator] {text}", file=sys.stderr, flush=True)
