# ruff: noqa: ARG002, B006 - the vendor's signatures
"""`ModelVariantHandle`: the view of one variant of a model. Emulated models have exactly one."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _describe
from ._artefact import Artefact
from ._buffer_info import BufferInfo
from ._enums import DataType
from ._errors import unavailable
from ._scales import unit_scales
from ._values import Buffer, Scale
from .npu_data import NPUData

_Shape = tuple[int, ...]
_Array = np.ndarray[Any, Any]


class ModelVariantHandle:
    """Made by `Model.get_model_variant_handle`."""

    def __init__(self, _model_variant_handle: Artefact) -> None:
        self._artefact = _model_variant_handle

    @classmethod
    def from_cpp(cls, _model_variant_handle: Artefact) -> ModelVariantHandle:
        """A handle on an artefact."""
        return cls(_model_variant_handle)

    def get_variant_idx(self) -> int:
        """Always 0."""
        return 0

    def get_model_input_shape(self) -> list[_Shape]:
        """Declared input shapes; -n marks a variable axis."""
        return _describe.input_shapes(self._artefact)

    def get_model_output_shape(self) -> list[_Shape]:
        """Declared output shapes; -n marks a variable axis."""
        return _describe.output_shapes(self._artefact)

    def get_input_buffer_info(self) -> list[BufferInfo]:
        """Sizes and limits of the input."""
        return _describe.input_buffers(self._artefact)

    def get_output_buffer_info(self) -> list[BufferInfo]:
        """Sizes and limits of the output."""
        return _describe.output_buffers(self._artefact)

    def get_input_scale(self) -> list[Scale]:
        """Unit scales."""
        return unit_scales()

    def get_output_scale(self) -> list[Scale]:
        """Unit scales."""
        return unit_scales()

    def get_model_input_data_type(self) -> DataType:
        """Float32."""
        return DataType.Float32

    def get_model_output_data_type(self) -> DataType:
        """Float32."""
        return DataType.Float32

    def acquire_input_buffer(self, seqlens: list[list[int]] = []) -> list[Buffer]:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def acquire_output_buffer(self, seqlens: list[list[int]] = []) -> list[Buffer]:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

    def acquire_input_npu_data(self, shape: list[int], idx: int, upload: bool, dtype: DataType) -> NPUData:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def acquire_output_npu_data(self, shape: list[int], idx: int, upload: bool, dtype: DataType) -> NPUData:
        """Not on the emulated NPU."""
        raise unavailable("NPUData")

    def release_buffer(self, buffer: list[Buffer]) -> None:
        """Not on the emulated NPU."""
        raise unavailable("buffer inference")

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
