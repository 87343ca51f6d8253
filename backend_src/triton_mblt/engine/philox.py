"""Randomness of one request: a counter-based stream, so that draw i depends on the seed and on i alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BLOCK = 64
_PER_COUNTER = 4  # 64-bit words that Philox4x64 makes of one counter value


class Draws:
    """The uniform numbers of one seed, addressed by position. What was asked before never changes an answer."""

    __slots__ = ("_block", "_start", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed % 2**64
        self._start = -1
        self._block: npt.NDArray[np.float64] = np.empty(0)

    def at(self, position: int) -> float:
        """The number of `position` (>= 0), in [0, 1)."""
        start = position - position % _BLOCK
        if start != self._start:  # a block at a time: making the generator costs more than the numbers
            generator = np.random.Generator(np.random.Philox(key=self.seed, counter=start // _PER_COUNTER))
            self._block, self._start = generator.random(_BLOCK), start
        return float(self._block[position - start])
