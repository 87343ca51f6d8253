"""The one reader of the environment, and the deployment file `lm/1/model.json` (design 3: environment, model.json,
package config).

Every field has one environment name, `MBLT_<FIELD>` in capitals. Nothing deeper reads the environment or defaults
again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from triton_mblt.core.errors import ConfigError

NpuKind = Literal["device", "emulated"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment: which model on which NPU, and its limits. Units are in the names; tokens and counts otherwise.

    `worker_realtime` puts the engine's thread before all others (SCHED_RR) while it works between two device calls;
    only where a device does the computing, else it starves the server.
    """

    model: str
    npu: NpuKind
    served_name: str = ""
    revision: str = ""
    max_batch_size: int | None = None
    max_model_len: int | None = None
    prefill_chunk: int | None = None
    max_prefill_tokens_per_step: int | None = None
    max_queue: int = 1024
    max_prompt_bytes: int = 8 * 1024 * 1024
    max_logprobs: int = 20
    tokenizer_threads: int = 4
    bls_threads: int = 64
    sequence_idle_s: float = 600.0
    cancel_poll_s: float = 0.02
    worker_start_limit_s: float = 600.0
    worker_backoff_s: float = 0.5
    worker_backoff_max_s: float = 30.0
    worker_memory_mb: int | None = None
    worker_nice: int = -10
    worker_realtime: bool = False
    drain_s: float = 3.0
    trust_remote_code: bool = False
    admin_key_file: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def name(self) -> str:
        """The name under which the model is shown: `served_name`, else the last part of the model's path or id."""
        return self.served_name or Path(self.model).name


_LIMITS: Mapping[str, float] = {
    "max_batch_size": 1,
    "max_model_len": 2,
    "prefill_chunk": 1,
    "max_prefill_tokens_per_step": 1,
    "max_queue": 1,
    "max_prompt_bytes": 1,
    "tokenizer_threads": 1,
    "bls_threads": 1,
    "sequence_idle_s": 0.001,
    "cancel_poll_s": 0.001,
    "worker_start_limit_s": 1,
    "worker_backoff_s": 0,
    "worker_backoff_max_s": 0,
    "worker_memory_mb": 64,
    "worker_nice": -20,
    "drain_s": 0,
}


def load_settings(model_json: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings of the deployment that `model_json` names; the environment wins over the file.

    A relative `model` path in the file is relative to the file's folder. Errors: ConfigError naming the field.
    """
    env = os.environ if environ is None else environ
    try:
        values = msgspec.json.decode(model_json.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read {model_json}: {error.strerror}", param="model.json") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{model_json} is not a JSON object: {error}", param="model.json") from error
    for field in msgspec.structs.fields(Settings):
        name = "MBLT_" + field.name.upper()
        if env.get(name, "") != "":
            values[field.name] = env[name]
    return settings_of(values, base=model_json.parent)


def settings_of(values: Mapping[str, Any], base: Path | None = None) -> Settings:
    """Settings from plain values (numeric strings accepted). `base` resolves a relative model folder."""
    try:
        settings = msgspec.convert(dict(values), Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"model.json: {error}", param=_field_of(str(error))) from error
    for name, least in _LIMITS.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least:g}, got {value:g}", param=name)
    if base is not None and not Path(settings.model).is_absolute() and (base / settings.model).is_dir():
        settings = msgspec.structs.replace(settings, model=str((base / settings.model).resolve()))
    return settings


def _field_of(message: str) -> str:
    """The field that a msgspec message names ("... - at `$.max_queue`", "unknown field `x`")."""
    for mark in ("`$.", "field `"):
        if mark in message:
            return message.split(mark, 1)[1].split("`", 1)[0]
    return "model.json"


def process_environment() -> dict[str, str]:
    """A copy of this process's environment, for starting children. The only other read of os.environ."""
    return dict(os.environ)
