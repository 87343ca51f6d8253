"""Which tokens go into the next device call: first come first served, bounded so that running streams do not stall.

Owns the waiting and the running list, and the hand-out of slots to turns.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from triton_mblt.engine.slots import SlotTable
from triton_mblt.engine.turn import Turn
from triton_mblt.npu.spec import ModelSpec

# Prefill chunks that one call carries by default: one would leave short rests unfilled, many would stall the decode
# rows.
DEFAULT_PREFILL_CHUNKS = 2


class Share(NamedTuple):
    """`length` tokens of `turn`, from its first uncomputed one, in the next call."""

    turn: Turn
    length: int

    @property
    def completes(self) -> bool:
        """All known tokens are computed after this call, so its logits give the next token."""
        return self.length == self.turn.pending


class Scheduler:
    """Waiting turns in admission order, running turns with slots, and the plan of a step."""

    def __init__(self, spec: ModelSpec, slots: SlotTable, prefill_budget: int | None) -> None:
        self._spec = spec
        self._slots = slots
        self._budget = prefill_budget or DEFAULT_PREFILL_CHUNKS * spec.row_limit
        self._waiting: list[Turn] = []
        self._running: list[Turn] = []

    def add(self, turn: Turn) -> None:
        bisect.insort(self._waiting, turn, key=lambda waiting: waiting.order)

    def remove(self, turn: Turn) -> None:
        """Take a turn out, wherever it is, and free its slot."""
        (self._waiting if turn.slot is None else self._running).remove(turn)
        if turn.slot is not None:
            self._slots.release(turn.slot)
            turn.slot = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def plan(self) -> list[Share]:
        """Every decode row, then prefill rows in admission order up to the token budget and the limits of a call."""
        self._admit()
        shares = [Share(turn, 1) for turn in self._running if turn.pending == 1]
        left = self._spec.call_limit - len(shares)
        budget = min(self._budget, left)
        for turn in self._running:
            if turn.pending > 1 and budget > 0:
                length = min(turn.pending, self._row_limit(turn), budget)
                shares.append(Share(turn, length))
                budget -= length
        return shares

    def _row_limit(self, turn: Turn) -> int:
        """A last-only artefact scores a prompt one token per call (contract 5.5); everything else goes in chunks."""
        scoring = turn.scores is not None and not turn.scores.complete
        return 1 if scoring and self._spec.logits == "last" else self._spec.row_limit

    def _admit(self) -> None:
        while self._waiting:
            turn = self._waiting[0]
            # A prompt that is to be scored needs the logits of all its tokens, so it is computed from the start.
            prompt, salt = turn.tokens[: turn.known], turn.request.cache_salt
            match = self._slots.acquire(turn.handle, prompt, salt, reuse=turn.scores is None)
            if match is None:
                return
            self._waiting.pop(0)
            turn.slot, turn.computed = match.slot, match.tokens
            turn.buffer.cached = match.tokens
            bisect.insort(self._running, turn, key=lambda running: running.order)
