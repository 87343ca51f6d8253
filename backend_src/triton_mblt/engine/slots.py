"""Cache slots: which turn owns which cache_id, and which tokens the slot's KV really holds.

Owner of both facts. A slot is handed out only here and comes back only here; since the engine is single-threaded, no
device call that names a slot can be in flight when it is released. A released slot keeps its KV, so that a prompt that
begins alike (the next turn of a conversation above all) can go on from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from triton_mblt.npu.device import Tokens

MatchKind = Literal["in_place", "rewind", "cold"]


@dataclass
class Slot:
    """One cache_id. `owner` is the handle of the turn that holds it, None when idle; `tokens[:held]` are the tokens
    whose KV is valid, of requests with this `salt`; `used_at` is the table's clock when it was last handed out."""

    cache_id: int
    tokens: Tokens = field(repr=False)
    owner: int | None = None
    held: int = 0
    used_at: int = 0
    salt: str = ""

    def common_prefix(self, prompt: Tokens, salt: str) -> int:
        """How many of the first tokens of `prompt` the slot holds for requests with this salt."""
        if self.salt != salt:
            return 0
        size = min(self.held, len(prompt))
        different = np.flatnonzero(self.tokens[:size] != prompt[:size])
        return int(different[0]) if len(different) else size


class PrefixMatch(NamedTuple):
    """How a turn obtains the first `tokens` of its prompt: `in_place` goes on behind all that the slot holds, `rewind`
    overwrites what the slot holds beyond them, `cold` computes everything."""

    kind: MatchKind
    slot: Slot
    tokens: int


class SlotTable:
    """The K slots of one model."""

    def __init__(self, count: int, capacity: int) -> None:
        """`capacity`: tokens that one slot can hold."""
        self._slots = [Slot(cache_id, np.empty(capacity, dtype=np.int32)) for cache_id in range(count)]
        self._clock = 0
        self.matches: dict[MatchKind, int] = {"in_place": 0, "rewind": 0, "cold": 0}
        self.tokens_saved = 0

    @property
    def count(self) -> int:
        return len(self._slots)

    @property
    def free(self) -> int:
        return sum(slot.owner is None for slot in self._slots)

    def acquire(self, handle: int, prompt: Tokens, salt: str, reuse: bool) -> PrefixMatch | None:
        """The best idle slot for the turn `handle`, or None when all are owned.

        At least the last token of `prompt` is left to compute: its logits give the next one. Without `reuse` nothing is
        taken over.
        """
        idle = [slot for slot in self._slots if slot.owner is None]
        if not idle:
            return None
        self._clock += 1
        found = [(slot, slot.common_prefix(prompt[:-1], salt) if reuse else 0) for slot in idle]
        slot, tokens = max(found, key=lambda one: self._gain(*one))
        kind: MatchKind = "cold" if tokens == 0 else "in_place" if tokens == slot.held else "rewind"
        slot.owner, slot.used_at = handle, self._clock
        if slot.salt != salt:  # before anything is computed: the turn may be aborted first
            slot.salt, slot.held = salt, 0
        self.matches[kind] += 1
        self.tokens_saved += tokens
        return PrefixMatch(kind, slot, tokens)

    def release(self, slot: Slot) -> None:
        """Give a slot back. The owner is cleared exactly once: releasing an idle slot is a bug."""
        if slot.owner is None:
            raise AssertionError(f"slot {slot.cache_id} released twice")
        slot.owner = None

    def advance(self, slot: Slot, start: int, tokens: Tokens) -> None:
        """The device wrote KV of `tokens` from `start` on: what lay behind is overwritten or stale."""
        slot.held = start + len(tokens)
        slot.tokens[start : slot.held] = tokens

    def invalidate(self, slot: Slot) -> None:
        """After a failed device call nothing in the slot can be trusted."""
        slot.held = 0

    def owners(self) -> dict[int, int]:
        """handle -> cache_id of every owned slot."""
        return {slot.owner: slot.cache_id for slot in self._slots if slot.owner is not None}

    def _gain(self, slot: Slot, tokens: int) -> tuple[float, int, int]:
        """Tokens saved now, less those that somebody will probably have to compute again. The chance that what a slot
        holds is wanted again halves with every K slots handed out since its last use, so old conversations give way.
        Among equals, the one unused for longest, then the lowest cache_id."""
        wanted_again = 0.5 ** (1 + (self._clock - slot.used_at) / len(self._slots))
        return tokens - wanted_again * (slot.held - tokens), -slot.used_at, -slot.cache_id
