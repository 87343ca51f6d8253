"""Makes a running emulated NPU misbehave, from outside. Its `_faults.py` lists the kinds of faults."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_mblt.core.errors import ConfigError
from triton_mblt.emulator.run_dir import default_run_dir
from triton_mblt.emulator.site.qbruntime._faults import parse_fault
from triton_mblt.emulator.site.qbruntime._options import OptionError
from triton_mblt.emulator.site.qbruntime._records import start_ticks


def inject(pid: int, fault: Mapping[str, Any], *, run_dir: Path | None = None) -> str:
    """Arm `fault` in the emulated NPU of process `pid`, from its next call on, and return the fault's id.

    Raises ConfigError for a fault that means nothing and when there is no such process.
    """
    try:
        parse_fault(dict(fault))
    except OptionError as error:
        raise ConfigError(str(error), param="fault") from error
    armed = {**fault, "id": uuid.uuid4().hex}
    path = _path(pid, run_dir)
    _write(pid, path, [*_faults(path, _started(pid)), armed])
    return str(armed["id"])


def clear(pid: int, *, run_dir: Path | None = None) -> None:
    """Disarm everything that was injected into process `pid`. Raises ConfigError when there is none."""
    _write(pid, _path(pid, run_dir), [])


def _path(pid: int, run_dir: Path | None) -> Path:
    return (default_run_dir() if run_dir is None else run_dir) / f"{pid}.faults.json"


def _started(pid: int) -> int:
    started = start_ticks(pid)
    if started is None:
        raise ConfigError(f"there is no process {pid}", param="pid")
    return started


def _faults(path: Path, started: int) -> list[Any]:
    """What is in the file, unless an earlier process of the same pid left it."""
    if not path.exists():
        return []
    raw = json.loads(path.read_text(encoding="utf-8"))
    return list(raw["faults"]) if raw["started"] == started else []


def _write(pid: int, path: Path, faults: list[Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"started": _started(pid), "faults": faults}), encoding="utf-8")
    new.replace(path)
