# ruff: noqa: ARG002 - the vendor's signatures
"""`NPUData`: exists for its name. The emulated NPU keeps no tensors for callers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import unavailable
from .accelerator import Accelerator

__all__ = ["NPUData"]


class NPUData:
    """A tensor on the device (a beta feature, not available to language models); cannot be made here."""

    def __init__(self, _npu_data: Any) -> None:
        raise unavailable("NPUData")

    def launch(self, acc: Accelerator) -> None:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def cpu(self) -> None:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def copy_from(self, src: NPUData) -> None:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def __getitem__(self, key: Any) -> Any:
        raise unavailable("NPUData")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise unavailable("NPUData")

    def __len__(self) -> int:
        raise unavailable("NPUData")

    @property
    def shape(self) -> tuple[int, ...]:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    @property
    def dev_no(self) -> int:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    @property
    def hardware_name(self) -> str:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")
