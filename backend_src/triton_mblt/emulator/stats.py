"""Reads the counters of emulated NPUs while they run (`triton-mblt emulate stats`).

Only reads, except that files of dead processes are cleared away.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from triton_mblt.emulator.run_dir import default_run_dir
from triton_mblt.emulator.site.qbruntime._records import (
    COUNTERS,
    COUNTERS_AT,
    FILE_BYTES,
    HEADER_BYTES,
    IDENTITY,
    MAGIC,
    RECORD,
    RING,
    Counters,
    Identity,
    Record,
    start_ticks,
)


class CallStats(TypedDict):
    """One call. Times of the system's monotonic clock; `nominal_ms` is 0 where no profile paces."""

    start_ns: int
    end_ns: int
    nominal_ms: float
    rows: int
    tokens: int
    cache_ids: list[int]


class ProcessStats(TypedDict):
    """Sums since the process began, and its latest calls, oldest first."""

    pid: int
    calls: int
    rows: int
    tokens: int
    prefill_rows: int
    decode_rows: int
    infer_s: float
    dumps: int
    loads: int
    refused: int
    failed: int
    latest: list[CallStats]


def read_stats(pid: int | None = None, *, latest: int = RING, run_dir: Path | None = None) -> list[ProcessStats]:
    """Counters of one process, or of all that run, by pid; each with at most `latest` of its calls (4,096 are kept).

    run_dir: where the processes keep them, by default as MBLT_EMULATOR_RUN_DIR says. Empty when there is nothing.
    """
    folder = default_run_dir() if run_dir is None else run_dir
    found = []
    for path in sorted(folder.glob("*.stats" if pid is None else f"{pid}.stats")):
        stats = _read(path, latest)
        if stats is not None:
            found.append(stats)
    return sorted(found, key=lambda stats: stats["pid"])


def _read(path: Path, latest: int) -> ProcessStats | None:
    """The counters in a file; None, and the file removed, when its process is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        before = os.pread(descriptor, FILE_BYTES, 0)
        after = os.pread(descriptor, HEADER_BYTES, 0)
    finally:
        os.close(descriptor)
    if len(before) < FILE_BYTES:
        return None
    identity = Identity(*IDENTITY.unpack_from(before))
    if identity.magic != MAGIC or start_ticks(identity.pid) != identity.started:
        path.unlink(missing_ok=True)
        path.with_suffix(".faults.json").unlink(missing_ok=True)
        return None
    counters = Counters(*COUNTERS.unpack_from(before, COUNTERS_AT))
    overwritten = Counters(*COUNTERS.unpack_from(after, COUNTERS_AT)).calls - RING
    first = max(0, overwritten + 1, counters.calls - latest)
    return ProcessStats(
        pid=identity.pid,
        calls=counters.calls,
        rows=counters.rows,
        tokens=counters.tokens,
        prefill_rows=counters.prefill_rows,
        decode_rows=counters.decode_rows,
        infer_s=counters.infer_ns * 1e-9,
        dumps=counters.dumps,
        loads=counters.loads,
        refused=counters.refused,
        failed=counters.failed,
        latest=[_call(before, index) for index in range(first, counters.calls)],
    )


def _call(data: bytes, index: int) -> CallStats:
    record = Record(*RECORD.unpack_from(data, HEADER_BYTES + index % RING * RECORD.size))
    return CallStats(
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        nominal_ms=record.nominal_ns * 1e-6,
        rows=record.rows,
        tokens=record.tokens,
        cache_ids=record.cache_ids(),
    )
