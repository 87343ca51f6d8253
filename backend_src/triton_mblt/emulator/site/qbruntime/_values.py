"""The runtime's small value types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._enums import CacheType, Cluster, Core
from ._numbers import int32, uint64


class Scale:
    """Quantisation scale of a tensor: one value (uniform) or one per channel."""

    def __init__(
        self,
        scale: float,
        is_uniform: bool,
        scale_list: list[float],
        zero_point: int = 0,
        is_asymmetric: bool = False,
        zero_points: list[int] | None = None,
    ) -> None:
        self.scale = scale
        self.is_uniform = is_uniform
        self.scale_list = scale_list
        self.zero_point = zero_point
        self.is_asymmetric = is_asymmetric
        self.zero_points = zero_points if zero_points is not None else []

    @classmethod
    def from_cpp(cls, _scale: Scale) -> Scale:
        """A copy."""
        return cls(**_scale.__dict__)

    def __getitem__(self, i: int) -> float:
        """The scale of channel `i`. IndexError outside (the real runtime reads foreign memory there)."""
        return self.scale if self.is_uniform else self.scale_list[i]

    def __repr__(self) -> str:
        names = ("scale", "is_uniform", "scale_list", "zero_point", "is_asymmetric", "zero_points")
        return _show(self, names)


class CoreId:
    """A core of the NPU. Comparable but, as in the real runtime, not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, cluster: Cluster, core: Core) -> None:
        self.cluster = cluster
        self.core = core

    @classmethod
    def from_cpp(cls, _core_id: CoreId) -> CoreId:
        """A copy."""
        return cls(_core_id.cluster, _core_id.core)

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self._cluster

    @cluster.setter
    def cluster(self, value: Cluster) -> None:
        self._cluster: Cluster = _member(value, Cluster)

    @property
    def core(self) -> Core:
        """The core in its cluster."""
        return self._core

    @core.setter
    def core(self, value: Core) -> None:
        self._core: Core = _member(value, Core)

    def _key(self) -> tuple[int, int]:
        return self._cluster.value, self._core.value

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, CoreId) and self._key() == other._key()

    def __lt__(self, other: CoreId) -> bool:
        return self._key() < other._key()

    def __repr__(self) -> str:
        return f"CoreId(cluster={self.cluster}, core={self.core})"


class Buffer:
    """A block of bytes in the NPU's own layout. Exists for its name; language models do not use it."""

    def __init__(self, _buffer: Buffer | None = None) -> None:
        self.size: int = 0 if _buffer is None else _buffer.size
        self._bytes: bytes = b"" if _buffer is None else _buffer._bytes

    def set_buffer(self, arr: np.ndarray[Any, Any]) -> None:
        """Take the bytes of `arr`."""
        self._bytes = np.ascontiguousarray(arr).tobytes()
        self.size = len(self._bytes)

    def __repr__(self) -> str:
        return f"Buffer(size={self.size})"


class CacheInfo:
    """One KV cache of a model. `size`: bytes of one slot; `num_batches`: number of slots K."""

    def __init__(
        self,
        cache_type: CacheType = CacheType.Error,
        name: str = "",
        layer_hash: str = "",
        size: int = 0,
        num_batches: int = 0,
    ) -> None:
        self.cache_type = _member(cache_type, CacheType)
        self.name = name
        self.layer_hash = layer_hash
        self.size = uint64(size, "size")
        self.num_batches = int32(num_batches, "num_batches")

    @classmethod
    def from_cpp(cls, _cache_info: CacheInfo) -> CacheInfo:
        """A copy."""
        return cls(**_cache_info.__dict__)


class BatchParam:
    """One row of a batched call: tokens in it, tokens before it in its slot, and the slot."""

    def __init__(self, sequence_length: int = 0, cache_size: int = 0, cache_id: int = 0) -> None:
        self.sequence_length = sequence_length
        self.cache_size = cache_size
        self.cache_id = cache_id

    def __repr__(self) -> str:
        return _show(self, ("sequence_length", "cache_size", "cache_id"))

    @property
    def sequence_length(self) -> int:
        """Tokens of the row in this call."""
        return self._sequence_length

    @sequence_length.setter
    def sequence_length(self, value: int) -> None:
        self._sequence_length = int32(value, "sequence_length")

    @property
    def cache_size(self) -> int:
        """Tokens that the slot holds before this call."""
        return self._cache_size

    @cache_size.setter
    def cache_size(self, value: int) -> None:
        self._cache_size = int32(value, "cache_size")

    @property
    def cache_id(self) -> int:
        """The slot."""
        return self._cache_id

    @cache_id.setter
    def cache_id(self, value: int) -> None:
        self._cache_id = int32(value, "cache_id")


def _member(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise AttributeError(f"expected a {kind.__name__}, got {type(value).__name__}")
    return value


def _show(value: object, names: Sequence[str]) -> str:
    inside = ", ".join(f"{name}={getattr(value, name)}" for name in names)
    return f"{type(value).__name__}({inside})"
