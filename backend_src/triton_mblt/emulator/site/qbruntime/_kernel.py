"""The seam between the runtime's API and whatever produces logits.

A kernel owns the KV memory of one launched model. The API above it has checked every call and runs one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Row(NamedTuple):
    """One row of a call: `length` new tokens, written from position `cache_size` on in the slot `cache_id`."""

    length: int
    cache_size: int
    cache_id: int


class Kernel(Protocol):
    """Computes, or pretends to."""

    def forward(self, inputs: list[npt.NDArray[np.float32]], rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Write the KV of the call and return its logits.

        inputs[0] is [T, H], the rows' tokens packed in order. Returns float32 [T, V] when the artefact gives logits for
        all positions, else [len(rows), V]. A row that reads a position never written gets NaN.
        """

    def dump(self, cache_id: int) -> list[bytes]:
        """The whole slot: one blob per cache, of the artefact's cache sizes."""

    def load(self, cache_id: int, blobs: list[bytes]) -> None:
        """Overwrite the whole slot with blobs of `dump`, of this or another process."""
