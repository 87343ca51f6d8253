"""`PinnedMemory`: exists for its name. The emulated NPU has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import unavailable

__all__ = ["PinnedMemory"]


class PinnedMemory:
    """Zero-copy host memory of REGULUS boards; cannot be made here."""

    def __init__(self, _pinned_memory: Any) -> None:
        raise unavailable("pinned memory")

    def __getitem__(self, key: Any) -> Any:
        raise unavailable("pinned memory")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise unavailable("pinned memory")

    def __len__(self) -> int:
        raise unavailable("pinned memory")

    @property
    def shape(self) -> tuple[int, ...]:
        """Not on the emulated NPU."""
        raise unavailable("pinned memory")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Not on the emulated NPU."""
        raise unavailable("pinned memory")

    @property
    def size(self) -> int:
        """Not on the emulated NPU."""
        raise unavailable("pinned memory")

    @property
    def is_available(self) -> bool:
        """Not on the emulated NPU."""
        raise unavailable("pinned memory")
