"""Faults on demand: which are armed in this process, and what they do to the next call.

Faults come as JSON objects from MBLT_EMULATOR_FAULTS (a list) at the start, and from `<run_dir>/<pid>.faults.json`
({"started": of the process as in its counters, "faults": [...]}), which is read again when it changes. Common fields:
"kind"; "at_call" (number of a call, 1 is the first of the process) or "after" (so many calls later than it was seen;
default 0, the next one); "times" (how often; default once, null for ever); "id".
    raise           "status": a status name of the runtime
    hang            "seconds": added to the call
    slow            "factor": of the nominal time; "times" defaults to null
    abort           the process ends by SIGABRT, or silently with "exit_code"
    drop_append     the call's KV is not kept, nobody is told
    corrupt_dump    a dump of a slot comes out damaged (counts dumps, not calls)
    device_missing  opening, launching and calling fail until "times" calls were refused; "times" defaults to null
    script          "tokens": the row's logits put these ids on top, one after the other from its first prompt on;
                    "cache_id" (any), "prompt_tokens" (exact start; without it a row of more than one token restarts)
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import _log
from ._errors import STATUSES
from ._options import OptionError, options
from ._records import start_ticks

_KINDS: dict[str, dict[str, tuple[type, ...]]] = {
    "raise": {"status": (str,)},
    "hang": {"seconds": (int, float)},
    "slow": {"factor": (int, float)},
    "abort": {"exit_code": (int, type(None))},
    "drop_append": {},
    "corrupt_dump": {},
    "device_missing": {},
    "script": {"tokens": (list,), "cache_id": (int, type(None)), "prompt_tokens": (int, type(None))},
}
_LASTING = ("slow", "device_missing", "script")
_COMMON = ("kind", "id", "at_call", "after", "times")


@dataclass
class Fault:
    """One armed fault. `times` None means for ever; `due` is the number of the first call (or dump) it may hit."""

    id: str
    kind: str
    at_call: int | None
    after: int
    times: int | None
    values: dict[str, Any]
    due: int = 0
    progress: dict[int, int] = field(default_factory=dict)


def parse_fault(raw: Any) -> Fault:
    """A fault from its JSON value. Raises OptionError naming what is wrong."""
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in _KINDS:
        raise OptionError(f'fault: "kind" must be one of {", ".join(_KINDS)}, got {kind!r}')
    odd = set(raw) - set(_COMMON) - set(_KINDS[kind])
    if odd:
        raise OptionError(f"fault {kind}: unknown fields {', '.join(sorted(odd))}")
    for name, types in _KINDS[kind].items():
        if not isinstance(raw.get(name), types) or isinstance(raw.get(name), bool):
            raise OptionError(f"fault {kind}: {name} is {raw.get(name)!r}")
    if kind == "raise" and raw["status"] not in STATUSES:
        raise OptionError(f"fault raise: unknown status {raw['status']!r}")
    if kind == "script" and not all(isinstance(token, int) and token >= 0 for token in raw["tokens"]):
        raise OptionError("fault script: tokens must be token ids")
    default_times = None if kind in _LASTING else 1
    return Fault(
        id=str(raw.get("id", "")),
        kind=kind,
        at_call=_count(raw, "at_call", None),
        after=_count(raw, "after", 0) or 0,
        times=_count(raw, "times", default_times),
        values={name: raw.get(name) for name in _KINDS[kind]},
    )


class FaultBoard:
    """The armed faults of a process. Counts its calls and dumps, and hands out what is due for each."""

    def __init__(self, initial: str, path: Path) -> None:
        """`initial`: JSON, may be empty. `path`: the file that is read again when it changes; need not exist."""
        self._path = path
        self._seen: set[str] = set()
        self._armed: list[Fault] = []
        self._version = (0, 0, 0)
        self._numbers = {"call": 1, "dump": 1}  # of the next one
        self._lock = threading.Lock()
        if initial:
            self._arm(_parse_list(initial, "MBLT_EMULATOR_FAULTS"))

    def next_call(self) -> list[Fault]:
        """Count a call; the faults that hit it, `device_missing` among them."""
        return self._next("call", lambda fault: fault.kind != "corrupt_dump")

    def next_dump(self) -> list[Fault]:
        """Count a dump; the faults that hit it."""
        return self._next("dump", lambda fault: fault.kind == "corrupt_dump")

    def device_missing(self) -> bool:
        """Whether the device is gone now, seen from outside a call."""
        with self._lock:
            self._refresh()
            hits = [self._hit(fault) for fault in list(self._armed) if fault.kind == "device_missing"]
            return any(hits)

    def _next(self, what: str, wanted: Callable[[Fault], bool]) -> list[Fault]:
        with self._lock:
            self._refresh()
            due = [fault for fault in list(self._armed) if wanted(fault) and self._hit(fault)]
            self._numbers[what] += 1
            return due

    def _hit(self, fault: Fault) -> bool:
        if self._numbers[_counts(fault)] < fault.due:
            return False
        if fault.times is not None:
            fault.times -= 1
            if fault.times <= 0:
                self._armed.remove(fault)
        return True

    def _refresh(self) -> None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - on every call, and the quicker one
        except FileNotFoundError:
            return
        version = (found.st_mtime_ns, found.st_ino, found.st_size)
        if version == self._version:
            return
        self._version = version
        faults = self._read()
        listed = {fault.id for fault in faults}
        self._armed = [fault for fault in self._armed if not fault.id or fault.id in listed]
        self._arm([fault for fault in faults if fault.id not in self._seen])

    def _read(self) -> list[Fault]:
        """The faults of the file; none when it was written for an earlier process of this pid."""
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
            if raw["started"] != start_ticks(os.getpid()):
                return []
            return [parse_fault(item) for item in raw["faults"]]
        except (ValueError, KeyError, TypeError) as error:
            _log.error(f"{self._path}: {error!r}")
            return []

    def _arm(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            fault.due = self._numbers[_counts(fault)] + fault.after if fault.at_call is None else fault.at_call
            self._armed.append(fault)
            if fault.id:
                self._seen.add(fault.id)


def board() -> FaultBoard:
    """The faults of this process (a forked child has its own)."""
    return _board_of(options().run_dir, os.getpid())


@lru_cache(maxsize=1)
def _board_of(run_dir: Path, pid: int) -> FaultBoard:
    return FaultBoard(options().faults, run_dir / f"{pid}.faults.json")


def _parse_list(text: str, source: str) -> list[Fault]:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{source}: {error}") from error
    return [parse_fault(item) for item in (raw if isinstance(raw, list) else [raw])]


def _counts(fault: Fault) -> str:
    return "dump" if fault.kind == "corrupt_dump" else "call"


def _count(raw: dict[str, Any], name: str, default: int | None) -> int | None:
    value = raw.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise OptionError(f"fault {raw['kind']}: {name} is {value!r}")
    return value
