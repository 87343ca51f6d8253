"""The names of the vendor's module `qbruntime.type`."""

from ._buffer_info import BufferInfo
from ._config import ModelConfig
from ._device import get_available_device_numbers, get_available_devices
from ._enums import CacheType, Cluster, Core, CoreAllocationPolicy, CoreMode, DataType
from ._log import LogLevel, set_log_level
from ._summary import get_model_summary
from ._trace import start_tracing_events, stop_tracing_events
from ._values import BatchParam, Buffer, CacheInfo, CoreId, Scale

__all__ = [
    "BatchParam",
    "Buffer",
    "BufferInfo",
    "CacheInfo",
    "CacheType",
    "Cluster",
    "Core",
    "CoreAllocationPolicy",
    "CoreId",
    "CoreMode",
    "DataType",
    "LogLevel",
    "ModelConfig",
    "Scale",
    "get_available_device_numbers",
    "get_available_devices",
    "get_model_summary",
    "set_log_level",
    "start_tracing_events",
    "stop_tracing_events",
]
