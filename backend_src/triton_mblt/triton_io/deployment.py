"""What a model of the repository finds out about its deployment: names in its configuration, settings of its LM.

Owns where the deployment file lies as seen from any model folder. What the settings mean is core/settings.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from triton_mblt.core.settings import Settings, load_settings


class Deployment(msgspec.Struct, frozen=True):
    """`lm`, `control` and `ensemble` are the names of models in the same repository, so that several deployments can
    share one."""

    name: str
    lm: str
    ensemble: str
    settings: Settings


def read_deployment(args: Mapping[str, str]) -> Deployment:
    """From the arguments of `initialize`. Errors: ConfigError for a bad deployment file or setting."""
    config = json.loads(args["model_config"]).get("parameters", {})
    lm = _parameter(config, "lm", "lm")
    model_json = Path(args["model_repository"]).parent / lm / "1" / "model.json"
    return Deployment(
        name=args["model_name"],
        lm=lm,
        ensemble=_parameter(config, "ensemble", "mblt_ensemble"),
        settings=load_settings(model_json),
    )


def _parameter(config: Mapping[str, Mapping[str, str]], key: str, default: str) -> str:
    return config.get(key, {}).get("string_value", "") or default
