"""A device whose answers can be computed by hand: the next token is a hash of the KV that the row really sees.

KV is one number per position that depends on all tokens before it, poisoned (-1) where never written, so a row that
claims a prefix its slot does not hold gets NaN, and one behind a stale tail gets another text. Each cache_id adds
nothing to the hash: the same history gives the same token in every slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from triton_mblt.core.errors import NpuFault
from triton_mblt.npu.device import Floats, Tokens
from triton_mblt.npu.spec import LogitsKind, ModelSpec, Row

POISON = -1


def make_spec(
    *,
    slots: int = 4,
    vocab: int = 97,
    max_cache: int = 64,
    row_limit: int = 8,
    logits: LogitsKind = "last",
    call_limit: int = 0,
) -> ModelSpec:
    return ModelSpec(
        vocab_size=vocab, hidden_size=1, slots=slots, batched=slots > 1, max_cache=max_cache, row_limit=row_limit,
        call_limit=call_limit or row_limit * slots, logits=logits, slot_bytes=max_cache * 4, device="emulated",
    )  # fmt: skip


def chain(history: Sequence[int]) -> list[int]:
    """KV of a text: as in attention, what stands at a position depends on all tokens before it."""
    values, value = [], 7
    for token in history:
        value = (value * 31 + int(token) + 1) % 1_000_003
        values.append(value)
    return values


def next_token(kv: Sequence[int], vocab: int) -> int:
    """The greedy continuation of what the KV says, all of it. Never below 3, so that 0-2 can be special tokens."""
    value = 1
    for one in kv:
        value = (value * 17 + int(one)) % 1_000_003
    return 3 + value % (vocab - 3)


def solo(prompt: Sequence[int], count: int, vocab: int) -> list[int]:
    """What a cold run of `prompt` generates, by hand."""
    known = list(prompt)
    for _ in range(count):
        known.append(next_token(chain(known), vocab))
    return known[len(prompt) :]


class FakeNpu:
    """Implements npu.device.Device in plain numpy. `calls` records every call; `fail_at` raises at that call number
    (from 0)."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.kv = np.full((spec.slots, spec.max_cache), POISON, dtype=np.int32)
        self.calls: list[list[Row]] = []
        self.fail_at: set[int] = set()
        self.closed = False

    def prepare(self, tokens: Tokens, rows: Sequence[Row]) -> Callable[[], Floats]:
        return partial(self._infer, tokens, rows)

    def _infer(self, tokens: Tokens, rows: Sequence[Row]) -> Floats:
        number = len(self.calls)
        self.calls.append(list(rows))
        self._check(tokens, rows)
        if number in self.fail_at:
            for row in rows:
                self.kv[row.cache_id, row.cache_size :] = POISON
            raise NpuFault("device call failed: planted")
        result, start = [], 0
        for row in rows:
            end = row.cache_size + row.length
            self._append(row, tokens[start : start + row.length])
            start += row.length
            first = row.cache_size + 1 if self.spec.logits == "all" else end
            result += [self._logits(self.kv[row.cache_id, :seen]) for seen in range(first, end + 1)]
        return np.stack(result)

    def dump(self, cache_id: int) -> list[bytes]:
        return [self.kv[cache_id].tobytes()]

    def restore(self, cache_id: int, blobs: list[bytes]) -> None:
        self.kv[cache_id] = np.frombuffer(blobs[0], dtype=np.int32)

    def close(self) -> None:
        self.closed = True

    def logits_after(self, history: Sequence[int]) -> Floats:
        """The row of logits behind a text."""
        return self._logits(np.array(chain(history), dtype=np.int32))

    def _append(self, row: Row, tokens: Tokens) -> None:
        value = int(self.kv[row.cache_id, row.cache_size - 1]) if row.cache_size else 7
        for position, token in enumerate(tokens.tolist(), row.cache_size):
            # Poison stays poison: what is computed behind a hole is worth nothing.
            value = POISON if value == POISON else (value * 31 + token + 1) % 1_000_003
            self.kv[row.cache_id, position] = value

    def _logits(self, kv: Tokens) -> Floats:
        if (kv == POISON).any():
            return np.full(self.spec.vocab_size, np.nan, dtype=np.float32)
        logits = np.linspace(0.0, 1.0, self.spec.vocab_size, dtype=np.float32)
        logits[next_token(kv.tolist(), self.spec.vocab_size)] = 9.0
        return logits

    def _check(self, tokens: Tokens, rows: Sequence[Row]) -> None:
        spec, ids = self.spec, [row.cache_id for row in rows]
        assert rows
        assert len(set(ids)) == len(ids)
        assert max(ids) < spec.slots
        assert sum(row.length for row in rows) == len(tokens) <= spec.call_limit
        for row in rows:
            assert 0 < row.length <= spec.row_limit
            assert row.cache_size + row.length <= spec.max_cache
