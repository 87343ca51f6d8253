"""Output arrays that are used again once nobody else holds them: fresh pages cost more than the logits in them."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

_KEPT = 4
_UNSHARED = 3  # references to an array that only the pool holds: the list, the loop's name, the argument


class OutputPool:
    """Arrays of `vocab` columns. A caller may keep what it took as long as it likes, views included."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._arrays: list[npt.NDArray[np.float32]] = []

    def take(self, lines: int) -> npt.NDArray[np.float32]:
        """An array [lines, vocab] that nothing else refers to, with anything in it."""
        for array in self._arrays:
            if array.shape[0] == lines and sys.getrefcount(array) == _UNSHARED:
                return array
        fresh: npt.NDArray[np.float32] = np.empty((lines, self._vocab), dtype=np.float32)
        self._arrays = [fresh, *self._arrays][:_KEPT]
        return fresh
