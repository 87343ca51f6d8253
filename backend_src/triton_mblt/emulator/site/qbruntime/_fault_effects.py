"""What the faults of one call do to it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _log
from ._errors import failure
from ._faults import Fault
from ._kernel import Row

_LIFT = 20.0  # how far above the best logit a scripted token is put


def strike(faults: Sequence[Fault]) -> None:
    """Do what happens before the device answers: hang, end the process, or raise."""
    for fault in faults:
        if fault.kind == "hang":
            time.sleep(fault.values["seconds"])
        elif fault.kind == "abort":
            _end(fault.values["exit_code"])
        elif fault.kind == "raise":
            raise failure(fault.values["status"], "fault: raise")
        elif fault.kind == "device_missing":
            raise failure("Driver_NotInitialized", "fault: device missing")


def slowed(faults: Sequence[Fault], nominal_ns: int, spent_ns: int) -> int:
    """The nominal time under `slow` faults, which stretch what the call has really taken where that is longer."""
    for fault in faults:
        if fault.kind == "slow":
            nominal_ns = round(max(nominal_ns, spent_ns) * fault.values["factor"])
    return nominal_ns


def drops(faults: Sequence[Fault]) -> bool:
    """Whether the call's KV is to be lost."""
    return any(fault.kind == "drop_append" for fault in faults)


def rewrite(
    faults: Sequence[Fault], logits: npt.NDArray[np.float32], rows: Sequence[Row], all_positions: bool
) -> npt.NDArray[np.float32]:
    """Logits [lines, V] with each row's scripted token on top; the array itself when nothing is scripted."""
    scripts = [fault for fault in faults if fault.kind == "script"]
    if not scripts:
        return logits
    logits, line = logits.copy(), -1
    for row in rows:
        line += row.length if all_positions else 1
        for fault in scripts:
            token = _scripted(fault, row)
            if token is not None and token < logits.shape[1]:
                logits[line, token] = np.nanmax(logits[line]) + _LIFT
    return logits


def damaged(blobs: Sequence[bytes]) -> list[bytes]:
    """Blobs of a dump with every byte after the first 16 of each changed."""
    return [blob[:16] + (np.frombuffer(blob, np.uint8, offset=16) ^ np.uint8(0x55)).tobytes() for blob in blobs]


def _scripted(fault: Fault, row: Row) -> int | None:
    """The token that the script wants for this row, None when it has nothing to say."""
    values: dict[str, Any] = fault.values
    if values["cache_id"] not in (None, row.cache_id):
        return None
    if values["prompt_tokens"] is not None:
        index = row.cache_size + row.length - values["prompt_tokens"]
    else:
        prompt = row.length > 1 or row.cache_size == 0
        index = 0 if prompt else fault.progress.get(row.cache_id, -1) + 1
        fault.progress[row.cache_id] = index
    tokens = values["tokens"]
    return int(tokens[index]) if 0 <= index < len(tokens) else None


def _end(exit_code: int | None) -> None:
    _log.error("fault: abort")
    if exit_code is None:
        os.abort()
    os._exit(exit_code)
