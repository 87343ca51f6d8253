"""Turns what callers send for one sampling field (JSON values, numeric strings) into a typed value, or refuses it.

Every error is an InvalidRequest that names the field and its limit. Knows nothing of the fields themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from triton_mblt.core.errors import InvalidRequest

_TRUE = frozenset({"true", "1"})
_FALSE = frozenset({"false", "0"})
_SHOWN = 60
_DIGITS = re.compile(r"[+-]?[0-9]{1,40}")
_MAX_NUMBER_CHARACTERS = 80


def refuse(field: str, rule: str, value: object) -> NoReturn:
    """Raise the InvalidRequest `field must be rule, not value`, with a long value cut short."""
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 3] + "..."
    raise InvalidRequest(f"{field} must be {rule}, not {shown}", param=field)


def to_int(field: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number in [low, high]: an int, an integral float, or a string of either. Booleans are refused."""
    rule = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    number = _whole(value)
    if number is None or number < low or (high is not None and number > high):
        refuse(field, rule, value)
    return number


def to_float(field: str, value: object, low: float, high: float, *, low_open: bool = False) -> float:
    """A finite number in [low, high], or (low, high] when `low_open`; a numeric string counts, a boolean does not."""
    rule = f"a number above {low:g} and at most {high:g}" if low_open else f"a number from {low:g} to {high:g}"
    number = _real(value)
    if number is None or number < low or number > high or (low_open and number == low):
        refuse(field, rule, value)
    return number


def to_bool(field: str, value: object) -> bool:
    """A boolean: true, false, 0, 1, or a string of these."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    refuse(field, "true or false", value)


def to_texts(field: str, value: object, limit: int, max_characters: int) -> tuple[str, ...]:
    """A string or a list of at most `limit` strings of at most `max_characters`. Empty strings are dropped (they match
    nothing; evaluation tools send them), text that is not valid Unicode is refused."""
    items: Sequence[object] = [value] if isinstance(value, str) else _listed(field, value, "strings", limit)
    texts = []
    for item in items:
        if not isinstance(item, str):
            refuse(field, "a string or a list of strings", item)
        if len(item) > max_characters:
            refuse(field, f"made of strings of at most {max_characters} characters", item)
        try:
            item.encode("utf-8")
        except UnicodeEncodeError:
            refuse(field, "valid Unicode (no lone surrogates)", item)
        if item:
            texts.append(item)
    return tuple(texts)


def to_token_ids(field: str, value: object, limit: int) -> tuple[int, ...]:
    """A token id or a list of at most `limit` ids, each at least 0. The vocabulary's size is checked elsewhere."""
    items = _listed(field, value, "token ids", limit) if isinstance(value, (list, tuple)) else [value]
    return tuple(to_int(field, item, 0) for item in items)


def to_bias(field: str, value: object, limit: int, bound: float) -> tuple[tuple[int, float], ...]:
    """A JSON object of token id to number in [-bound, bound], as pairs in order of id."""
    if not isinstance(value, Mapping):
        refuse(field, "an object of token id to number", value)
    if len(value) > limit:
        refuse(field, f"an object of at most {limit} entries", f"{len(value)} entries")
    pairs = {to_int(field, key, 0): to_float(field, bias, -bound, bound) for key, bias in value.items()}
    return tuple(sorted(pairs.items()))


def _listed(field: str, value: object, what: str, limit: int) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        refuse(field, f"a list of {what}", value)
    if len(value) > limit:
        refuse(field, f"a list of at most {limit} {what}", f"{len(value)} of them")
    return value


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        digits = value.strip()
        if _DIGITS.fullmatch(digits):
            return int(digits)
    number = _real(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2.0**53 else None


def _real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and (len(value) > _MAX_NUMBER_CHARACTERS or "_" in value or not value.isascii()):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
