"""This process's counters, in a small mapped file that others may read at any time (layout in `_records.py`).

The file is made when the first model is launched and removed when the process ends. Making one clears away those that
killed processes left.
"""

from __future__ import annotations

import atexit
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from . import _records
from ._kernel import Row
from ._records import COUNTERS, COUNTERS_AT, HEADER_BYTES, IDENTITY, MASK_BITS, RECORD, RING, Counters


class Stats:
    """Writes one file. Threads of the process may share it."""

    def __init__(self, path: Path) -> None:
        """Make the file, or take over one that a dead process of the same pid left."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(bytes(_records.FILE_BYTES))
        with new.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), _records.FILE_BYTES)
        self._path, self._pid = path, os.getpid()
        self._lock = threading.Lock()
        self._now = Counters(*[0] * len(Counters._fields))
        started = _records.start_ticks(self._pid) or 0
        IDENTITY.pack_into(self._map, 0, _records.MAGIC, self._pid, started)
        new.replace(path)

    @property
    def counters(self) -> Counters:
        """The sums so far."""
        return self._now

    def called(self, start_ns: int, end_ns: int, nominal_ns: int, rows: Sequence[Row], tokens: int) -> None:
        """Count one finished call."""
        mask, decodes = 0, 0
        for row in rows:
            mask |= 1 << row.cache_id % MASK_BITS
            decodes += row.length == 1
        with self._lock:
            now, count = self._now, len(rows)
            at = HEADER_BYTES + now.calls % RING * RECORD.size
            low, high = mask & (1 << 64) - 1, mask >> 64
            RECORD.pack_into(self._map, at, start_ns, end_ns, nominal_ns, count, tokens, low, high)
            self._put(
                Counters(
                    now.calls + 1,
                    now.rows + count,
                    now.tokens + tokens,
                    now.prefill_rows + count - decodes,
                    now.decode_rows + decodes,
                    now.infer_ns + end_ns - start_ns,
                    now.dumps,
                    now.loads,
                    now.refused,
                    now.failed,
                )
            )

    def add(self, *, dumps: int = 0, loads: int = 0, refused: int = 0, failed: int = 0) -> None:
        """Count something other than a finished call."""
        with self._lock:
            now = self._now
            self._put(
                now._replace(
                    dumps=now.dumps + dumps,
                    loads=now.loads + loads,
                    refused=now.refused + refused,
                    failed=now.failed + failed,
                )
            )

    def remove(self) -> None:
        """Take the file and that of injected faults away; does nothing in a forked child."""
        if os.getpid() == self._pid:
            self._path.unlink(missing_ok=True)
            self._path.with_suffix(".faults.json").unlink(missing_ok=True)

    def _put(self, counters: Counters) -> None:
        self._now = counters
        COUNTERS.pack_into(self._map, COUNTERS_AT, *counters)


_stats: Stats | None = None


def stats(run_dir: Path) -> Stats:
    """The counters of this process, made on first use and made anew in a forked child."""
    global _stats
    if _stats is None or _stats._pid != os.getpid():
        _stats = Stats(run_dir / f"{os.getpid()}.stats")
        atexit.register(_stats.remove)
        _clear_away(run_dir)
    return _stats


def _clear_away(run_dir: Path) -> None:
    """Remove the files of processes that are no more."""
    for path in run_dir.iterdir():
        pid = path.name.partition(".")[0]
        if pid.isdecimal() and _records.start_ticks(int(pid)) is None:
            path.unlink(missing_ok=True)
