"""The kernel that pretends: cheap logits that still depend on every token a slot has seen.

Each position of a slot keeps a 64-bit sum over hashes of (embedding row, position) up to it. The sum at a row's last
position chooses a row of the bank and a rotation. So the same text gives the same logits, however it was chunked,
batched, rewound or restored, and a stale or missing token gives others. Owns the slots; knows nothing of time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ._artefact import Artefact, cache_bytes
from ._bank import Bank
from ._kernel import Row
from ._outputs import OutputPool

_U64 = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_COLUMNS = 64  # of an embedding row go into its hash: enough to tell any two tokens apart
_HEADER = struct.Struct("<8sQ")
_MAGIC = b"MBLTLAT1"


class Slot:
    """KV of one cache_id: `sums[p]` is the sum up to position p, of which the first `valid` were written."""

    def __init__(self, capacity: int) -> None:
        self.sums: _U64 = np.zeros(capacity, dtype=np.uint64)
        self.valid = 0

    def write(self, start: int, terms: _U64) -> None:
        """Write positions from `start` (at most `valid`) on; later ones keep their own terms, as old KV would."""
        end = start + len(terms)
        before = self.sums[start - 1] if start else np.uint64(0)
        new = np.cumsum(terms, dtype=np.uint64) + before
        if end < self.valid:
            self.sums[end : self.valid] += new[-1:] - self.sums[end - 1 : end]  # arrays, since scalars warn of wrapping
        self.sums[start:end] = new
        self.valid = max(self.valid, end)

    def append(self, start: int, term: int) -> int:
        """`write` for one token without any array work. Returns the sum at its position."""
        new = (term + (self.sums.item(start - 1) if start else 0)) & _MASK
        if start + 1 < self.valid:
            self.sums[start + 1 : self.valid] += np.uint64((new - self.sums.item(start)) & _MASK)
        self.sums[start] = new
        self.valid = max(self.valid, start + 1)
        return new


class LatencyKernel:
    """The `Kernel` of latency mode."""

    def __init__(self, artefact: Artefact, bank: Bank) -> None:
        """`bank`: logits [any, vocab] to choose from."""
        self._capacity = artefact.max_cache
        self._blob_bytes = cache_bytes(artefact)
        self._all_positions = artefact.logits == "all"
        self._bank = bank
        self._floor = float(bank.min())
        self._eos = _eos_ids(artefact)
        self._slots: dict[int, Slot] = {}
        step = max(1, artefact.hidden // _COLUMNS)
        self._columns = slice(0, step * min(_COLUMNS, artefact.hidden), step)
        self._weights: _U64 = _mix(np.arange(1, min(_COLUMNS, artefact.hidden) + 1, dtype=np.uint64)) | np.uint64(1)
        self._position_keys: _U64 = _mix(np.arange(artefact.max_cache, dtype=np.uint64) * np.uint64(_GOLDEN))
        self._outputs = OutputPool(artefact.vocab)

    def forward(self, inputs: list[npt.NDArray[np.float32]], rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """See `Kernel`. Nothing else refers to the returned array's memory."""
        terms = self._terms(inputs[0], rows)
        out = self._outputs.take(len(terms) if self._all_positions else len(rows))
        at, line = 0, 0
        for row in rows:
            count = row.length if self._all_positions else 1
            for state in self._states(row, terms[at : at + row.length], count):
                self._play(out[line], state)
                line += 1
            at += row.length
        return out

    def dump(self, cache_id: int) -> list[bytes]:
        """See `Kernel`. The first blob carries the state; the others are there for their size."""
        slot = self._slots.get(cache_id)
        state = b"" if slot is None else slot.sums[: slot.valid].tobytes()
        head = _HEADER.pack(_MAGIC, len(state) // 8) + state
        first, *others = self._blob_bytes
        return [head.ljust(first, b"\0"), *(_zeros(size) for size in others)]

    def load(self, cache_id: int, blobs: list[bytes]) -> None:
        """See `Kernel`. Bytes that no dump wrote leave the slot unreadable."""
        slot = self._slots.setdefault(cache_id, Slot(self._capacity))
        magic, valid = _HEADER.unpack_from(blobs[0])
        slot.valid = valid if magic == _MAGIC and valid <= self._capacity else 0
        slot.sums[: slot.valid] = np.frombuffer(blobs[0], np.uint64, slot.valid, _HEADER.size)

    def _terms(self, tokens: npt.NDArray[np.float32], rows: Sequence[Row]) -> _U64:
        """One hash per token, of its embedding and its position."""
        if all(row.length == 1 for row in rows):
            positions: npt.NDArray[np.int64] = np.array([row.cache_size for row in rows])
        else:
            positions = np.concatenate([np.arange(row.cache_size, row.cache_size + row.length) for row in rows])
        sample = np.ascontiguousarray(tokens[:, self._columns]).view(np.uint32).astype(np.uint64)
        sample *= self._weights
        return _mix(_mix(sample.sum(axis=1, dtype=np.uint64)) ^ self._position_keys[positions])

    def _states(self, row: Row, terms: _U64, count: int) -> list[int]:
        """Write the row's KV; the sums at its last `count` positions, or -1 where it read what was never written."""
        slot = self._slots.get(row.cache_id)
        if slot is None:
            slot = self._slots[row.cache_id] = Slot(self._capacity)
        if row.cache_size > slot.valid:
            return [-1] * count
        if row.length == 1:
            return [slot.append(row.cache_size, terms.item())]
        slot.write(row.cache_size, terms)
        end = row.cache_size + row.length
        states: list[int] = slot.sums[end - count : end].tolist()
        return states

    def _play(self, out: npt.NDArray[np.float32], state: int) -> None:
        """Write the logits of a state into `out` [V]."""
        if state < 0:
            out.fill(np.nan)
            return
        number = _mix_one(state)
        source = self._bank[number % len(self._bank)]
        turn = (number >> 8) % len(source)
        out[: len(source) - turn] = source[turn:]
        out[len(source) - turn :] = source[:turn]
        if number >> 56:  # an end of text gets its chance in one of 256 steps: streams should last
            for eos in self._eos:
                out[eos] = self._floor


def _eos_ids(artefact: Artefact) -> tuple[int, ...]:
    named = artefact.config.get("eos_token_id")
    ids = named if isinstance(named, list) else [named]
    return tuple(i for i in ids if isinstance(i, int) and 0 <= i < artefact.vocab)


_zero_blobs: dict[int, bytes] = {}


def _zeros(size: int) -> bytes:
    """Zero bytes, one object for each size in the process: they cost neither time nor memory."""
    return _zero_blobs.setdefault(size, bytes(size))


def _mix(values: _U64) -> _U64:
    """Spread each number over all 64 bits (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mix_one(value: int) -> int:
    """`_mix` of one Python integer."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
