"""Event tracing in the runtime's form: a Chrome trace of begin and end pairs, written when tracing stops.

One trace per process. Off, it costs one attribute look-up per span.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_lock = threading.Lock()
_path: Path | None = None
_events: list[str] = []


def start_tracing_events(path: str) -> bool:
    """Start recording for `path`. False when the file cannot be made. True, and no change, while already recording."""
    global _path
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, got {type(path).__name__}")
    with _lock:
        if _path is not None:
            return True
        try:
            Path(path).open("a").close()
        except OSError:
            return False
        _events.clear()
        _path = Path(path)
        return True


def stop_tracing_events() -> None:
    """Write what was recorded and stop. Harmless when not recording."""
    global _path
    with _lock:
        if _path is None:
            return
        path, _path = _path, None
        path.write_text("[\n" + ",\n".join(_events) + "\n]\n", encoding="utf-8")
        _events.clear()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the block as one event called `name`, when tracing is on at its start."""
    if _path is None:
        yield
        return
    _note(name, "B")
    try:
        yield
    finally:
        _note(name, "E")


def _note(name: str, phase: str) -> None:
    event = {
        "name": name,
        "ph": phase,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "ts": time.monotonic_ns() / 1000,
    }
    _events.append(json.dumps(event))
