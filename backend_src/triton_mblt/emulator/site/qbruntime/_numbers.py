"""Which Python values the native layer takes as integers."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, SupportsInt


def int32(value: Any, name: str) -> int:
    """A signed 32-bit integer. Takes bool, numpy integers and numpy's narrow floats, but no Python float."""
    return _integer(value, name, -(2**31), 2**31 - 1)


def uint32(value: Any, name: str) -> int:
    """An unsigned 32-bit integer, under the same rules."""
    return _integer(value, name, 0, 2**32 - 1)


def uint64(value: Any, name: str) -> int:
    """An unsigned 64-bit integer, under the same rules."""
    return _integer(value, name, 0, 2**64 - 1)


def _integer(value: Any, name: str, least: int, most: int) -> int:
    # The usual case first: protocol checks take 10 us, and a call of 16 rows makes 48 of these.
    number = value if type(value) is int else _converted(value, name)
    if not least <= number <= most:
        raise TypeError(f"{name} is {number}, outside {least}..{most}")
    return number


def _converted(value: Any, name: str) -> int:
    if isinstance(value, float) or not isinstance(value, SupportsInt):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    # np.float32 has no index: the native layer truncates it without a word.
    return operator.index(value) if isinstance(value, SupportsIndex) else int(value)
