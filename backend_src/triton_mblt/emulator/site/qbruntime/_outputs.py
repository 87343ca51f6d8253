"""Output arrays that are used again once nobody else holds them: fresh pages cost more than the logits in them."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import numpy.typing as npt

_KEPT = 4
_HUGE_PAGE = 2 << 20
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
        fresh = _new_array(lines, self._vocab)
        self._arrays = [fresh, *self._arrays][:_KEPT]
        return fresh


def _new_array(lines: int, vocab: int) -> npt.NDArray[np.float32]:
    """Large ones in huge pages, like the contiguous buffers of a device: reading 3 MB after 20 ms of sleep takes half
    the time then. The array's base is the mapping, so numpy makes it the base of every view, which `take` relies on."""
    size = lines * vocab * 4
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty((lines, vocab), dtype=np.float32)
    pages = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray((lines, vocab), dtype=np.float32, buffer=pages)
