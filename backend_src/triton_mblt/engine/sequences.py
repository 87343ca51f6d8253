"""Order of turns inside a sequence: one at a time, in arrival order; START on a busy sequence replaces it (design 4).

Owns the turns that wait for an earlier turn of their sequence. Turns that may run are the scheduler's.
"""

from __future__ import annotations

from collections import deque

from triton_mblt.core.request import SequenceKey
from triton_mblt.engine.turn import Turn


class SequenceTable:
    """key -> its open turns; the first one is active, the others wait."""

    def __init__(self) -> None:
        self._open: dict[SequenceKey, deque[Turn]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open_turns(self, key: SequenceKey) -> list[Turn]:
        return list(self._open.get(key, ()))

    def add(self, turn: Turn) -> bool:
        """Queue a turn; True when it is the active one of its sequence and may be scheduled."""
        turns = self._open.setdefault(turn.request.key, deque())
        turns.append(turn)
        return len(turns) == 1

    def remove(self, turn: Turn) -> Turn | None:
        """Take out an ended turn; the turn that becomes active by this, if any."""
        turns = self._open[turn.request.key]
        was_active = turns[0] is turn
        turns.remove(turn)
        if not turns:
            del self._open[turn.request.key]
            return None
        return turns[0] if was_active else None

    def is_active(self, turn: Turn) -> bool:
        return self._open[turn.request.key][0] is turn
