"""The emulator's options. The only file of this package that reads the environment.

MBLT_EMULATOR_MODE      compute (default) | latency | compute+latency
MBLT_EMULATOR_PROFILE   name of a built-in latency profile (default seed), or the path of a JSON file
MBLT_EMULATOR_LOGITS    recorded (default) | flat: which logits latency mode plays
MBLT_EMULATOR_RUN_DIR   folder of counters and injected faults (default: one per user in the system's temporary folder)
MBLT_EMULATOR_FAULTS    JSON list of faults that are armed from the start (see `_faults.py`)
MBLT_EMULATOR_DEVICES   number of devices (default 1), or "aries-rb:2,regulus-ra:1"
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MODES = ("compute", "latency", "compute+latency")
LOGITS = ("recorded", "flat")
DEVICE_NAMES = ("aries-rb", "regulus-ra", "regulus-rb", "regulus-ra-usb", "regulus-rb-usb")
_MAX_DEVICES = 64


class OptionError(ValueError):
    """An option has a value that means nothing; the text names the option."""


@dataclass(frozen=True)
class Options:
    """Parsed options. `devices` maps a concrete device name to how many of it are plugged in."""

    mode: str
    profile: str
    logits: str
    run_dir: Path
    faults: str
    devices: tuple[tuple[str, int], ...]

    @property
    def computes(self) -> bool:
        """Whether real numbers are computed."""
        return self.mode.startswith("compute")

    @property
    def paces(self) -> bool:
        """Whether calls last as long as the profile says."""
        return self.mode.endswith("latency")


@lru_cache(maxsize=1)
def options() -> Options:
    """The options of this process, read once. Raises OptionError."""
    return parse(os.environ)


def parse(env: Mapping[str, str]) -> Options:
    """Options from an environment. Raises OptionError."""
    return Options(
        mode=_choice(env, "MBLT_EMULATOR_MODE", MODES),
        profile=env.get("MBLT_EMULATOR_PROFILE") or "seed",
        logits=_choice(env, "MBLT_EMULATOR_LOGITS", LOGITS),
        run_dir=Path(env.get("MBLT_EMULATOR_RUN_DIR") or default_run_dir()),
        faults=env.get("MBLT_EMULATOR_FAULTS", ""),
        devices=_devices(env.get("MBLT_EMULATOR_DEVICES") or "1"),
    )


def default_run_dir() -> Path:
    """The run folder when none is named: per user, so that two users of a machine do not meet."""
    return Path(tempfile.gettempdir()) / f"mblt-emulator-{os.getuid()}"


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name) or allowed[0]
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
    return value


def _devices(text: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().rpartition(":")
        name = name or DEVICE_NAMES[0]
        if name not in DEVICE_NAMES or not count.isdecimal() or int(count) > _MAX_DEVICES or name in found:
            raise OptionError(f'MBLT_EMULATOR_DEVICES is {text!r}; it must be a number or like "aries-rb:2"')
        found[name] = int(count)
    return tuple((name, count) for name, count in found.items() if count)
