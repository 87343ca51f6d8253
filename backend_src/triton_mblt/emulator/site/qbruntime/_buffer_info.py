"""`BufferInfo`: the sizes of one input or output, as the runtime shows them."""

from __future__ import annotations

from typing import Any

from ._numbers import uint32

_Shape = tuple[int, int, int]


class BufferInfo:
    """Sizes in elements. `max_width`: most tokens (of an output: rows) of one call; `max_cache_size`: KV capacity."""

    def __init__(
        self,
        original_height: int = 0,
        original_width: int = 0,
        original_channel: int = 0,
        reshaped_height: int = 0,
        reshaped_width: int = 0,
        reshaped_channel: int = 0,
        height: int = 0,
        width: int = 0,
        channel: int = 0,
        max_height: int = 0,
        max_width: int = 0,
        max_channel: int = 0,
        max_cache_size: int = 0,
    ) -> None:
        self.original_height = original_height
        self.original_width = original_width
        self.original_channel = original_channel
        self.reshaped_height = reshaped_height
        self.reshaped_width = reshaped_width
        self.reshaped_channel = reshaped_channel
        self.height = height
        self.width = width
        self.channel = channel
        self.max_height = max_height
        self.max_width = max_width
        self.max_channel = max_channel
        self.max_cache_size = max_cache_size

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, uint32(value, name))

    @classmethod
    def from_cpp(cls, _buffer_info: BufferInfo) -> BufferInfo:
        """A copy."""
        return cls(**_buffer_info.__dict__)

    def original_size(self) -> int:
        """Elements of the original tensor."""
        return _product(self.original_shape())

    def reshaped_size(self) -> int:
        """Elements of the reshaped tensor."""
        return _product(self.reshaped_shape())

    def size(self) -> int:
        """Elements of the NPU's tensor."""
        return _product(self.shape())

    def original_shape(self) -> _Shape:
        """Height, width, channel of the original tensor."""
        return self.original_height, self.original_width, self.original_channel

    def original_shape_chw(self) -> _Shape:
        """The same, channel first."""
        return self.original_channel, self.original_height, self.original_width

    def reshaped_shape(self) -> _Shape:
        """Height, width, channel of the reshaped tensor."""
        return self.reshaped_height, self.reshaped_width, self.reshaped_channel

    def reshaped_shape_chw(self) -> _Shape:
        """The same, channel first."""
        return self.reshaped_channel, self.reshaped_height, self.reshaped_width

    def shape(self) -> _Shape:
        """Height, width, channel of the NPU's tensor."""
        return self.height, self.width, self.channel

    def shape_chw(self) -> _Shape:
        """The same, channel first."""
        return self.channel, self.height, self.width

    def __repr__(self) -> str:
        return f"BufferInfo({', '.join(f'{name}={value}' for name, value in self.__dict__.items())})"


def _product(shape: _Shape) -> int:
    return shape[0] * shape[1] * shape[2]
