"""From a plan to logits: embeds the planned tokens, makes the device call, picks the rows that give a next token.

Checks before every call that each slot really holds what its row claims (design 6), and drops the claim when it does
not.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from triton_mblt.engine.scheduler import Share
from triton_mblt.engine.slots import SlotTable
from triton_mblt.npu.device import Device, Floats
from triton_mblt.npu.spec import Row

log = logging.getLogger(__name__)


class StepLogits(NamedTuple):
    """Logits of a call, float32 [rows, V]; share i has the rows before `ends[i]`, from `ends[i - 1]` on."""

    rows: Floats
    ends: list[int]

    def last(self, picked: Sequence[int]) -> Floats:
        """The last row of each picked share, [len(picked), V]; without a copy when that is all there is."""
        return self.rows if len(picked) == len(self.rows) else self.rows[[self.ends[index] - 1 for index in picked]]

    def of(self, index: int) -> Floats:
        """All rows of one share: one per token, or only the last token's."""
        return self.rows[self.ends[index - 1] if index else 0 : self.ends[index]]


class Runner:
    """One path for n >= 1 rows. Owns the counters of device work."""

    def __init__(self, model: Device, slots: SlotTable) -> None:
        self._model = model
        self._slots = slots
        self.calls = 0
        self.tokens = 0
        self.rebuilds = 0

    def covered(self, shares: Sequence[Share]) -> list[Share]:
        """The shares whose slot holds their prefix. A turn that claims more than its slot holds restarts from what is
        held."""
        good = []
        for share in shares:
            turn, slot = share.turn, share.turn.slot
            assert slot is not None
            if turn.computed > slot.held:
                self.rebuilds += 1
                log.warning(
                    "request %s cache_id %d: MBLT runtime cache token count %d is below the expected %d; rebuilding",
                    turn.request.request_id, slot.cache_id, slot.held, turn.computed,
                )  # fmt: skip
                turn.computed = slot.held
            else:
                good.append(share)
        return good

    def run(self, shares: Sequence[Share], entering: Callable[[], None]) -> StepLogits:
        """One device call. Its logits must be consumed before the next call. `entering` is called when all is ready and
        only the device works from then on: a thread that it wakes takes no time from the gap between two calls.

        Errors: NpuFault, and then the slots of all shares are invalid.
        """
        rows = [self._row(share) for share in shares]
        tokens = np.concatenate([share.turn.tokens[share.turn.computed :][: share.length] for share in shares])
        call = self._model.prepare(tokens, rows)
        entering()
        logits = call()
        self.calls += 1
        self.tokens += len(tokens)
        for (turn, length), row in zip(shares, rows, strict=True):
            assert turn.slot is not None
            self._slots.advance(turn.slot, row.cache_size, turn.tokens[turn.computed : turn.computed + length])
        lengths = [share.length if self._model.spec.logits == "all" else 1 for share in shares]
        return StepLogits(logits, list(itertools.accumulate(lengths)))

    @staticmethod
    def _row(share: Share) -> Row:
        assert share.turn.slot is not None
        return Row(share.turn.slot.cache_id, share.turn.computed, share.length)
