"""Latency profiles: how long a call takes on the hardware that is stood in for.

A profile is a JSON object; `kind` chooses the rule, every other field has the unit in its name:
    {"kind": "chunked", "chunk_tokens": 128, "prefill_ms_per_chunk": 60, "decode_ms_per_call": 20}
        each row of more than one token costs its started chunks; rows of one token cost one decode together;
        a call with both costs both.
    {"kind": "linear", "prefill_ms_per_token": 0.5, "decode_ms_per_token": 20, "cores": 8, "call_ms": 0}
        a row costs its tokens; rows run side by side, row `cache_id` on core `cache_id` modulo `cores`.
Both take "dump_ms" and "load_ms" (default 0), the time to move one slot.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ._kernel import Row
from ._options import OptionError

BUILT_IN = Path(__file__).resolve().parent / "profiles"

_FIELDS: Mapping[str, Mapping[str, float | None]] = {
    "chunked": {"chunk_tokens": None, "prefill_ms_per_chunk": None, "decode_ms_per_call": None},
    "linear": {"prefill_ms_per_token": None, "decode_ms_per_token": None, "cores": None, "call_ms": 0.0},
}
_TRANSFERS: Mapping[str, float | None] = {"dump_ms": 0.0, "load_ms": 0.0}


class Profile(Protocol):
    """Nominal times in nanoseconds."""

    dump_ns: int
    load_ns: int

    def call_ns(self, rows: Sequence[Row]) -> int:
        """How long one call with these rows takes."""


class Chunked:
    """Costs by started chunks, measured on the seed's stand-in device."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.dump_ns, self.load_ns = _ns(values["dump_ms"]), _ns(values["load_ms"])
        self._chunk = max(1, int(values["chunk_tokens"]))
        self._prefill = _ns(values["prefill_ms_per_chunk"])
        self._decode = _ns(values["decode_ms_per_call"])

    def call_ns(self, rows: Sequence[Row]) -> int:
        """See the module."""
        chunks = sum(math.ceil(row.length / self._chunk) for row in rows if row.length > 1)
        decodes = any(row.length == 1 for row in rows)
        return chunks * self._prefill + (self._decode if decodes else 0)


class Linear:
    """Costs by tokens, rows side by side on cores."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.dump_ns, self.load_ns = _ns(values["dump_ms"]), _ns(values["load_ms"])
        self._cores = max(1, int(values["cores"]))
        self._prefill = _ns(values["prefill_ms_per_token"])
        self._decode = _ns(values["decode_ms_per_token"])
        self._call = _ns(values["call_ms"])

    def call_ns(self, rows: Sequence[Row]) -> int:
        """See the module."""
        busy = [0] * self._cores
        for row in rows:
            busy[row.cache_id % self._cores] += row.length * self._prefill if row.length > 1 else self._decode
        return self._call + max(busy)


def load_profile(name: str) -> Profile:
    """A built-in profile by name, or one from a JSON file by path. Raises OptionError naming what is wrong."""
    path = BUILT_IN / f"{name}.json"
    if not path.is_file():
        path = Path(name)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(found.stem for found in BUILT_IN.glob("*.json")))
        raise OptionError(f"MBLT_EMULATOR_PROFILE {name!r}: {error} (built in: {known})") from error
    return parse_profile(raw, name)


def parse_profile(raw: Any, name: str) -> Profile:
    """A profile from its JSON value. Raises OptionError."""
    kind = str(raw.get("kind")) if isinstance(raw, dict) else ""
    if kind not in _FIELDS:
        raise OptionError(f'profile {name}: "kind" must be one of {", ".join(_FIELDS)}')
    fields = {**_FIELDS[kind], **_TRANSFERS}
    odd = set(raw) - set(fields) - {"kind", "about"}
    if odd:
        raise OptionError(f"profile {name}: unknown fields {', '.join(sorted(odd))}")
    values: dict[str, float] = {}
    for field, default in fields.items():
        value = raw.get(field, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise OptionError(f"profile {name}: {field} must be a number from 0, got {value!r}")
        values[field] = float(value)
    return Chunked(values) if kind == "chunked" else Linear(values)


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
