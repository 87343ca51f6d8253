"""What the engine needs of an NPU: the seam between engine and runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from triton_mblt.npu.spec import ModelSpec, Row

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]


class Device(Protocol):
    """A loaded model, used by one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    def prepare(self, tokens: Tokens, rows: Sequence[Row]) -> Callable[[], Floats]:
        """A device call with packed rows: `tokens` int32 [T] with T = sum of row lengths, in row order.

        Nothing happens until the result is called, once. It returns float32 logits, [T, V] for all-position artefacts,
        else [len(rows), V]; that may be the runtime's own buffer, so consume it before the next call (contract 2.7).
        Errors of the call: NpuFault; then the rows' KV is unknown.
        """

    def dump(self, cache_id: int) -> list[bytes]:
        """The whole KV of one slot, one opaque blob per cache (`spec.slot_bytes` in total). Errors: NpuFault."""

    def restore(self, cache_id: int, blobs: list[bytes]) -> None:
        """Load blobs of `dump` into a slot (any slot of a model of the same package). Errors: NpuFault."""

    def close(self) -> None:
        """Give the device back."""
