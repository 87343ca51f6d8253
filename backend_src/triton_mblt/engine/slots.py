"""Cache slots: which turn owns which cache_id, and how many tokens the slot's KV really holds.

Owner of both facts. A slot is handed out only here and comes back only here; since the engine is single-threaded, no
device call
that names a slot can be in flight when it is released.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Slot:
    """One cache_id. `owner` is the handle of the turn that holds it, None when idle; `held` counts the tokens of valid
    KV."""

    cache_id: int
    owner: int | None = None
    held: int = 0


class SlotTable:
    """The K slots of one model. Lowest free cache_id first."""

    def __init__(self, count: int) -> None:
        self._slots = [Slot(cache_id) for cache_id in range(count)]

    @property
    def count(self) -> int:
        return len(self._slots)

    @property
    def free(self) -> int:
        return sum(slot.owner is None for slot in self._slots)

    def acquire(self, handle: int) -> Slot | None:
        """An idle slot for the turn `handle`, cold (`held` 0), or None when all are owned."""
        for slot in self._slots:
            if slot.owner is None:
                slot.owner, slot.held = handle, 0
                return slot
        return None

    def release(self, slot: Slot) -> None:
        """Give a slot back. The owner is cleared exactly once: releasing an idle slot is a bug."""
        if slot.owner is None:
            raise AssertionError(f"slot {slot.cache_id} released twice")
        slot.owner = None

    def advance(self, slot: Slot, start: int, length: int) -> None:
        """The device wrote KV at [start, start + length): what lies behind it is overwritten or stale."""
        slot.held = start + length

    def invalidate(self, slot: Slot) -> None:
        """After a failed device call nothing in the slot can be trusted."""
        slot.held = 0

    def owners(self) -> dict[int, int]:
        """handle -> cache_id of every owned slot."""
        return {slot.owner: slot.cache_id for slot in self._slots if slot.owner is not None}
