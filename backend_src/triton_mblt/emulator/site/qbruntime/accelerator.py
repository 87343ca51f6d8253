# ruff: noqa: ARG002 - the vendor's signatures
"""`Accelerator`: an opened device. Several may be opened on one device; models are independent of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _device, _log
from ._errors import failure, unavailable
from ._faults import board
from ._numbers import int32
from .pinned_memory import PinnedMemory

__all__ = ["Accelerator"]


class Accelerator:
    """An emulated NPU, opened by name (case-insensitive) and number."""

    def __init__(self, device_name: Any = "auto", dev_no: Any = 0) -> None:
        """Open a device. Errors: as `_device.resolve` says; TypeError for other types."""
        if isinstance(device_name, int):
            dev_no, device_name = device_name, "auto"
        if not isinstance(device_name, str):
            raise TypeError(f"device_name must be a str or an int, got {type(device_name).__name__}")
        number = int32(dev_no, "dev_no")
        if board().device_missing():
            raise failure("Driver_NotInitialized", "fault: device missing")
        self._name = _device.resolve(device_name, number)
        self._number = number
        _log.info(f"opened EMULATED device {self._name} #{number}")

    def get_device_name(self) -> str:
        """The concrete name, for example "aries-rb"."""
        return self._name

    def allocate_pinned_memory(self, shape: Sequence[int], dtype: np.dtype[Any]) -> PinnedMemory:
        """Not on the emulated NPU."""
        raise unavailable("pinned memory")
