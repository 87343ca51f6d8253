# ruff: noqa: ARG002, B006 - the vendor's signatures
"""The methods of `Model` that language models do not need: they exist, and say NotImplemented."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._enums import DataType
from ._errors import unavailable
from ._values import Buffer
from .future import Future
from .npu_data import NPUData
from .pinned_memory import PinnedMemory

_Array = np.ndarray[Any, Any]


class UnsupportedMethods:
    """Mixed into `Model`. Every method raises QbRuntimeError NotImplemented."""

    def infer_to_float(self, inputs: _Array | list[_Array], cache_size: int = 0) -> list[_Array]:
        """Not on the emulated NPU."""
        raise unavailable("int8 inference")

    def infer_hwc_to_float(self, inputs: _Array | list[_Array], cache_size: int = 0) -> list[_Array]:
        """Not on the emulated NPU."""
        raise unavailable("int8 inference")

    def infer_chw_to_float(self, inputs: _Array | list[_Array], cache_size: int = 0) -> list[_Array]:
        """Not on the emulated NPU."""
        raise unavailable("int8 inference")

    def infer_buffer(
        self,
        inputs: list[Buffer],
        outputs: list[Buffer],
        shape: list[list[int]] = [],
        cache_size: int = 0,
    ) -> None:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def infer_speedrun(self) -> None:
        """Not on the emulated NPU."""
        raise unavailable("speedrun inference")

    def infer_pinned_memory(
        self, inputs: list[PinnedMemory], outputs: list[PinnedMemory] | None = None, cache_size: int = 0
    ) -> list[PinnedMemory] | None:
        """Not on the emulated NPU."""
        raise unavailable("pinned memory")

    def acquire_input_npu_data(
        self, shape: list[int], idx: int = 0, upload: bool = False, dtype: DataType | None = None
    ) -> NPUData:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def acquire_output_npu_data(
        self, shape: list[int], idx: int = 0, upload: bool = False, dtype: DataType | None = None
    ) -> NPUData:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def infer_npu_data(
        self, inputs: list[NPUData], outputs: list[NPUData] | None = None, cache_size: int = 0
    ) -> list[NPUData] | None:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def infer_npu_data_chw(
        self, inputs: list[NPUData], outputs: list[NPUData] | None = None, cache_size: int = 0
    ) -> list[NPUData] | None:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def infer_async(self, inputs: _Array | list[_Array]) -> Future:
        """Not on the emulated NPU (nor for language models on the real one)."""
        raise unavailable("asynchronous inference")

    def infer_async_to_float(self, inputs: _Array | list[_Array]) -> Future:
        """Not on the emulated NPU (nor for language models on the real one)."""
        raise unavailable("asynchronous inference")

    def reposition_inputs(
        self,
        inputs: list[_Array],
        input_bufs: list[Buffer],
        seqlens: list[list[int]] = [],
    ) -> None:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def reposition_outputs(
        self,
        output_bufs: list[Buffer],
        outputs: list[_Array],
        seqlens: list[list[int]] = [],
    ) -> None:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def acquire_input_buffer(self, seqlens: list[list[int]] = []) -> list[Buffer]:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def acquire_output_buffer(self, seqlens: list[list[int]] = []) -> list[Buffer]:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def release_buffer(self, buffer: list[Buffer]) -> None:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def filter_cache_tail(self, cache_size: int, tail_size: int, mask: list[bool]) -> int:
        """Not on the emulated NPU."""
        raise unavailable("editing of the cache's tail")

    def move_cache_tail(self, num_head: int, num_tail: int, cache_size: int) -> int:
        """Not on the emulated NPU."""
        raise unavailable("editing of the cache's tail")
