"""The layout of a process's counters file, for the one who writes it (`_stats.py`) and those who read it.

Little endian: a header, then a ring of fixed records, one per call. `calls` is written last, so a reader that finds it
unchanged after reading has seen whole records. Times are of the system's monotonic clock, in nanoseconds.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"MBLTST01"
RING = 4096
HEADER_BYTES = 256
MASK_BITS = 128

IDENTITY = struct.Struct("<8sQQ")
COUNTERS = struct.Struct("<10Q")
COUNTERS_AT = 64
RECORD = struct.Struct("<QQQIIQQ")
FILE_BYTES = HEADER_BYTES + RING * RECORD.size


class Identity(NamedTuple):
    """Whose file this is. `started` is the process's start time in clock ticks since boot (tells reused pids apart)."""

    magic: bytes
    pid: int
    started: int


class Counters(NamedTuple):
    """Sums since the process began. `infer_ns`: time inside calls. `refused`: calls that a check turned away."""

    calls: int
    rows: int
    tokens: int
    prefill_rows: int
    decode_rows: int
    infer_ns: int
    dumps: int
    loads: int
    refused: int
    failed: int


class Record(NamedTuple):
    """One call. `nominal_ns` is what the profile asked for (0 when it asks for nothing); the masks hold cache_ids."""

    start_ns: int
    end_ns: int
    nominal_ns: int
    rows: int
    tokens: int
    mask_low: int
    mask_high: int

    def cache_ids(self) -> list[int]:
        """The slots of the call, ascending."""
        mask = self.mask_low | self.mask_high << 64
        return [bit for bit in range(MASK_BITS) if mask >> bit & 1]


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123 - read on a hot start-up path, plain is plainest
            return int(stream.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
