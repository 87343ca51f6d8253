"""From settings to a serving engine: the one place that joins the real NPU model with the engine."""

from __future__ import annotations

from triton_mblt.core.package import resolve_package
from triton_mblt.core.settings import Settings
from triton_mblt.engine.engine import Engine
from triton_mblt.npu.runtime import NpuModel
from triton_mblt.text.tokenizer import TextTokenizer


def load(settings: Settings) -> Engine:
    """Load the deployment's model. Errors: ConfigError when a retry would fail alike, else NpuFault."""
    folder = resolve_package(settings.model, settings.revision)
    tokenizer = TextTokenizer.load(folder)
    return Engine(NpuModel.load(folder, settings), tokenizer, settings)
