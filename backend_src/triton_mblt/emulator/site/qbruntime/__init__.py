# ruff: noqa: F401 - the names of the vendor's module
"""The emulated Mobilint NPU runtime: a stand-in for the vendor's module `qbruntime` 1.5.0, for language models.

Put the folder above this package first on PYTHONPATH and any user of the real module runs without a card. It has the
vendor's names, signatures, checks and error texts, and is stricter. Options: `_options.py`.
"""

from ._errors import QbRuntimeError
from .accelerator import Accelerator
from .future import Future
from .model import Model, load
from .model_variant_handle import ModelVariantHandle
from .npu_data import NPUData
from .pinned_memory import PinnedMemory
from .type import (
    BatchParam,
    Buffer,
    BufferInfo,
    CacheInfo,
    CacheType,
    Cluster,
    Core,
    CoreAllocationPolicy,
    CoreId,
    CoreMode,
    DataType,
    LogLevel,
    ModelConfig,
    Scale,
    get_available_device_numbers,
    get_available_devices,
    get_model_summary,
    set_log_level,
    start_tracing_events,
    stop_tracing_events,
)
from .version import __git_version__, __product__, __vendor__, __version__

# What a star import brings, which in the vendor's module is less than what is there.
__all__ = [  # noqa: RUF022 - the vendor's order
    "Cluster",
    "Core",
    "CoreAllocationPolicy",
    "Scale",
    "CoreId",
    "Buffer",
    "CoreMode",
    "BufferInfo",
    "ModelConfig",
    "LogLevel",
    "set_log_level",
    "start_tracing_events",
    "stop_tracing_events",
    "Model",
    "load",
    "Accelerator",
    "PinnedMemory",
    "NPUData",
    "QbRuntimeError",
]
