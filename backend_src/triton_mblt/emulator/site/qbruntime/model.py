# ruff: noqa: ARG002 - the vendor's signatures
"""`Model`: an artefact, its configuration and, once launched, its emulated device; and `load`."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _caches, _check, _cores, _describe
from ._artefact import ArtefactError, read_artefact
from ._buffer_info import BufferInfo
from ._config import ModelConfig
from ._enums import CoreMode, DataType
from ._errors import QbRuntimeError, failure, unavailable
from ._faults import board
from ._launched import Launched
from ._numbers import int32
from ._options import DEVICE_NAMES
from ._scales import unit_scales
from ._trace import span
from ._unsupported import UnsupportedMethods
from ._values import BatchParam, CacheInfo, CoreId, Scale
from .accelerator import Accelerator
from .model_variant_handle import ModelVariantHandle

__all__ = ["Model", "load"]

_Shape = tuple[int, ...]
_Array = np.ndarray[Any, Any]
_Inputs = _Array | list[_Array]

_identifiers = itertools.count()


class Model(UnsupportedMethods):
    """A language model on the emulated NPU. Hashable by identity, weakly referenceable.

    Calls from several threads run one after the other. `_acc` is the accelerator while launched, None after `dispose`
    and absent before `launch`: users of the real runtime look at it.
    """

    _acc: Accelerator | None

    def __init__(self, path: str, model_config: ModelConfig | None = None) -> None:
        """Read and check an artefact; no device needed.

        Errors: Model_FailedToLoadMXQ, Model_MXQAndModelConfigNotMatch.
        """
        if not isinstance(path, str):
            raise TypeError(f"path must be a str, got {type(path).__name__}")
        try:
            self._artefact = read_artefact(path)
        except ArtefactError as error:
            raise failure("Model_FailedToLoadMXQ", str(error)) from error
        self._config = ModelConfig() if model_config is None else copy.copy(model_config)
        _cores.check_config(self._artefact, self._config)
        self._path = path
        self._identifier = next(_identifiers)
        self._inputs = _describe.input_shapes(self._artefact)
        self._outputs = _describe.output_shapes(self._artefact)
        self._device: Launched | None = None

    def launch(self, acc: Accelerator) -> None:
        """Load the model onto the device.

        Errors: Model_AlreadyLaunched, Model_BrokenMXQ, Model_IsNotSupportedHardware.
        """
        if not isinstance(acc, Accelerator):
            raise TypeError(f"acc must be an Accelerator, got {type(acc).__name__}")
        if self._device is not None:
            raise failure("Model_AlreadyLaunched", self._path)
        if board().device_missing():
            raise failure("Driver_NotInitialized", "fault: device missing")
        _cores.check_device(acc.get_device_name(), self._config)
        self._device = Launched(self._artefact)
        self._acc = acc

    def dispose(self) -> None:
        """Free the device; its KV is gone. Waits for a running call."""
        if self._device is not None:
            with self._device.cache_lock:
                self._device = None
        self._acc = None

    def infer(
        self,
        inputs: _Inputs,
        outputs: list[_Array] | None = None,
        cache_size: int = 0,
        params: list[BatchParam] | None = None,
    ) -> list[_Array] | None:
        """Run embeddings float32 (1, T, H) or (1, 1, T, H) and return [logits], or fill `outputs` and return None.

        One slot: `cache_size` tokens are before these. Several: `params` has one entry per row, rows packed in order,
        and `cache_size` is not used. Logits have the input's rank, (.., rows, V); batched ones are (rows, V) for last
        positions and (1, T, V) for all. Errors: ValueError and TypeError as in the vendor's Python layer, otherwise
        QbRuntimeError: Model_NotLaunched, Model_ShapeMismatched, Model_DtypeMismatched, Model_InvalidBatchParam,
        Model_CacheOverflow, Model_NotSupported.
        """
        return self._infer(inputs, outputs, cache_size, None, params)

    def infer_hwc(
        self,
        inputs: _Inputs,
        outputs: list[_Array] | None = None,
        cache_size: int = 0,
        params: list[BatchParam] | None = None,
    ) -> list[_Array] | None:
        """`infer`, refusing channel-first inputs."""
        return self._infer(inputs, outputs, cache_size, True, params)

    def infer_chw(
        self,
        inputs: _Inputs,
        outputs: list[_Array] | None = None,
        cache_size: int = 0,
        params: list[BatchParam] | None = None,
    ) -> list[_Array] | None:
        """`infer` for channel-first inputs: not on the emulated NPU."""
        return self._infer(inputs, outputs, cache_size, False, params)

    def is_target(self, core_id: CoreId) -> bool:
        """Whether the model runs on this core."""
        return core_id in self.get_target_cores()

    def get_core_mode(self) -> CoreMode:
        """The configured mode."""
        return self._config.get_core_mode()

    def get_device_names(self) -> list[str]:
        """Names of the devices that can run this artefact: all."""
        return list(DEVICE_NAMES)

    def get_target_cores(self) -> list[CoreId]:
        """The cores that the model runs on."""
        return _cores.target_cores(self._config)

    @property
    def target_cores(self) -> list[CoreId]:
        """Deprecated: `get_target_cores`."""
        return self.get_target_cores()

    def get_num_model_variants(self) -> int:
        """Always 1."""
        return 1

    def get_model_variant_handle(self, variant_idx: int) -> ModelVariantHandle:
        """The view of variant 0. Error Model_InvalidVariantIdx for another."""
        if int32(variant_idx, "variant_idx") != 0:
            raise failure("Model_InvalidVariantIdx", f"variant {variant_idx} of 1")
        return ModelVariantHandle.from_cpp(self._artefact)

    def get_model_input_shape(self) -> list[_Shape]:
        """Declared input shapes; -n marks a variable axis."""
        return list(self._inputs)

    def get_model_output_shape(self) -> list[_Shape]:
        """Declared output shapes; -n marks a variable axis."""
        return list(self._outputs)

    def get_input_scale(self) -> list[Scale]:
        """Unit scales."""
        return unit_scales()

    def get_output_scale(self) -> list[Scale]:
        """Unit scales."""
        return unit_scales()

    def get_input_buffer_info(self) -> list[BufferInfo]:
        """Sizes and limits of the input: `max_width` tokens of a call, `max_cache_size` tokens of a slot."""
        return _describe.input_buffers(self._artefact)

    def get_output_buffer_info(self) -> list[BufferInfo]:
        """Sizes and limits of the output: `max_width` rows of logits."""
        return _describe.output_buffers(self._artefact)

    def get_model_input_data_type(self) -> DataType:
        """Float32."""
        return DataType.Float32

    def get_model_output_data_type(self) -> DataType:
        """Float32."""
        return DataType.Float32

    def get_identifier(self) -> int:
        """Number of this object in the process, from 0."""
        return self._identifier

    def get_model_path(self) -> str:
        """The path given."""
        return self._path

    def get_cache_infos(self) -> list[CacheInfo]:
        """One entry per KV cache; `num_batches` is the number of slots K."""
        return _describe.cache_infos(self._artefact)

    def dump_cache_memory(self, cache_id: int = 0) -> list[bytes]:
        """The whole slot, one blob per cache. Errors: Model_NotLaunched, Model_InvalidBatchParam."""
        return _caches.dump(self._launched(), cache_id)

    def load_cache_memory(self, bufs: list[bytes], cache_id: int = 0) -> None:
        """Overwrite the whole slot. Errors: also Model_NumCacheMismatched, Model_BufferSizeMismatched."""
        _caches.load(self._launched(), bufs, cache_id)

    def dump_cache_memory_to(self, cache_dir: str, cache_id: int = 0) -> None:
        """The whole slot into files `cache_<layer_hash>.bin`. Error Model_FailedToFindDirectory."""
        _caches.dump_to(self._launched(), cache_dir, cache_id)

    def load_cache_memory_from(self, cache_dir: str, cache_id: int = 0) -> None:
        """The whole slot from such files. Errors: also Model_FailedToOpenCacheFile."""
        _caches.load_from(self._launched(), cache_dir, cache_id)

    def dump_cache_memory_by_name(self, name: str, cache_id: int = 0) -> bytes:
        """One cache of a slot. Error Model_CacheNotFound."""
        return _caches.dump_one(self._launched(), "name", name, cache_id)

    def dump_cache_memory_by_layer_hash(self, layer_hash: str, cache_id: int = 0) -> bytes:
        """One cache of a slot. Error Model_CacheNotFound."""
        return _caches.dump_one(self._launched(), "layer_hash", layer_hash, cache_id)

    def load_cache_memory_by_name(self, buf: bytes, name: str, cache_id: int = 0) -> None:
        """Overwrite one cache of a slot. Errors: Model_CacheNotFound, Model_BufferSizeMismatched."""
        _caches.load_one(self._launched(), buf, "name", name, cache_id)

    def load_cache_memory_by_layer_hash(self, buf: bytes, layer_hash: str, cache_id: int = 0) -> None:
        """Overwrite one cache of a slot. Errors: Model_CacheNotFound, Model_BufferSizeMismatched."""
        _caches.load_one(self._launched(), buf, "layer_hash", layer_hash, cache_id)

    def reset_fixed_tail_cache_memory(self, cache_id: int = 0) -> None:
        """Error Model_NoCache: these models have no cache of that type."""
        raise failure("Model_NoCache", "no KV cache of type CacheType.FixedTailCache")

    def _launched(self) -> Launched:
        if self._device is None:
            raise failure("Model_NotLaunched", f"{self._path} is not launched")
        return self._device

    def _infer(
        self,
        inputs: _Inputs,
        outputs: list[_Array] | None,
        cache_size: int,
        want_hwc: bool | None,
        params: Sequence[BatchParam] | None,
    ) -> list[_Array] | None:
        begin = time.monotonic_ns()
        with span("infer"):
            arrays = inputs if isinstance(inputs, list) else [inputs]
            hwc, chw = _check.layout(arrays, self._inputs)
            if want_hwc is not None and not (hwc if want_hwc else chw):
                raise ValueError("Input shape is invalid.")
            if not (hwc if want_hwc is None else want_hwc):
                raise unavailable("channel-first inference")
            with span("convert to buffer"):
                array = np.ascontiguousarray(arrays[0])
            if outputs is not None:
                self._prepare(outputs, array.dtype)
            device = self._launched()
            try:
                tokens, rows = self._checked(array, cache_size, params)
            except (QbRuntimeError, TypeError):
                device.refuse()
                raise
            logits = device.call(begin, tokens, rows)
            with span("convert from buffer"):
                shaped = self._shaped(logits, array.ndim, params is not None)
                if outputs is None:
                    return [shaped]
                outputs[0][...] = shaped.reshape(outputs[0].shape)
                return None

    def _checked(
        self, array: _Array, cache_size: int, params: Sequence[BatchParam] | None
    ) -> tuple[npt.NDArray[np.float32], list[Any]]:
        tokens = _check.tokens_of(array, self._artefact.hidden)
        if params is None:
            return tokens, _check.single_row(self._artefact, len(tokens), cache_size)
        return tokens, _check.batch_rows(self._artefact, len(tokens), params)

    def _prepare(self, outputs: list[_Array], dtype: np.dtype[Any]) -> None:
        """Check the caller's output arrays, or make them in place when the list is empty (variable axes fail there)."""
        if outputs:
            _check.check_outputs(outputs, self._outputs, dtype)
            outputs[:] = [np.ascontiguousarray(output) for output in outputs]
        else:
            outputs[:] = [np.empty(shape, dtype=dtype) for shape in self._outputs]

    def _shaped(self, logits: npt.NDArray[np.float32], rank: int, batched: bool) -> npt.NDArray[np.float32]:
        """Logits [lines, V] as callers of the real runtime expect them."""
        if not batched:
            return logits.reshape((1,) * (rank - 2) + logits.shape)
        return logits if self._artefact.logits == "last" else logits[np.newaxis]


def load(path: str, model_config: ModelConfig | None = None) -> Model:
    """Open the only device, read the model and launch it."""
    acc = Accelerator()
    model = Model(path, model_config)
    model.launch(acc)
    return model
