"""Where the model repository of this product lies, and copies of it for other models (`triton-mblt repo create`).

Owns the rule that Triton's idle limit of a sequence is twice ours. Knows the file names inside a repository; what the
settings mean is core/settings.py's.
"""

from __future__ import annotations

import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import triton_mblt
from triton_mblt.core.errors import ConfigError
from triton_mblt.core.settings import Settings, settings_of

MODEL_JSON = Path("lm", "1", "model.json")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_IDLE = re.compile(r"(max_sequence_idle_microseconds:\s*)\d+")


def shipped_repository() -> Path:
    """The repository of the source checkout, else of the installed package. Errors: ConfigError when there is none."""
    checkout = Path(triton_mblt.__file__).parents[2] / "model_repository"
    installed = Path(sysconfig.get_path("data")) / "share" / "triton-mblt" / "model_repository"
    for folder in (checkout, installed):
        if (folder / MODEL_JSON).is_file():
            return folder
    raise ConfigError(f"the model repository is neither in {checkout} nor in {installed}; reinstall triton-mblt")


def resolve_model(model: str) -> str:
    """A package folder as an absolute path, or a hub id unchanged. Errors: ConfigError for anything else."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if _HUB_ID.fullmatch(model):
        return model
    raise ConfigError(f"{model} is neither a folder nor an id like mobilint/NAME", param="model")


def parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` arguments as a mapping. Errors: ConfigError naming the malformed one."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"settings are written key=value, got {pair!r}")
        if key in ("model", "served_name"):
            raise ConfigError(f"{key} has an option of its own", param=key)
        values[key] = value
    return values


def create(model: str, out: Path, *, name: str = "", settings: Mapping[str, str] | None = None) -> Settings:
    """Write a repository for `model` into the new folder `out`. Returns the settings that its model.json holds.

    Errors: ConfigError when `out` has files in it or cannot be written, the model is no folder or id, or a setting is
    unknown or wrong.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already; name a new folder", param="out")
    template = shipped_repository()
    values: dict[str, Any] = msgspec.json.decode((template / MODEL_JSON).read_bytes(), type=dict[str, Any])
    values |= {"model": resolve_model(model), **(settings or {})}
    if name:
        values["served_name"] = name
    parsed = settings_of(values)
    plain = msgspec.to_builtins(parsed)
    chosen = {key: plain[key] for key in values}
    try:
        shutil.copytree(template, out, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"), dirs_exist_ok=True)
        (out / MODEL_JSON).write_bytes(msgspec.json.format(msgspec.json.encode(chosen), indent=2) + b"\n")
        idle_us = round(2 * parsed.sequence_idle_s * 1e6)
        for config in out.glob("*/config.pbtxt"):
            config.write_text(_IDLE.sub(rf"\g<1>{idle_us}", config.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}", param="out") from error
    return parsed
