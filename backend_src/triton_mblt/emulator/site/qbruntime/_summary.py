"""`get_model_summary`: an artefact in a few lines of text."""

from __future__ import annotations

from . import _log
from ._artefact import ArtefactError, read_artefact


def get_model_summary(mxq_path: str) -> str:
    """A readable description of the artefact at `mxq_path`; empty when it cannot be read, never an error."""
    if not isinstance(mxq_path, str):
        raise TypeError(f"mxq_path must be a str, got {type(mxq_path).__name__}")
    try:
        artefact = read_artefact(mxq_path)
    except ArtefactError as error:
        _log.error(f"no summary: {error}")
        return ""
    width = 1 if artefact.batch == 1 and artefact.logits == "last" else -1
    return "\n".join(
        [
            f"Model: {artefact.family} (emulated), build {artefact.build_id}",
            "Target device: any emulated NPU",
            f"Rows: {artefact.batch}, cache: {artefact.max_cache} tokens",
            f"Tokens per call: {artefact.max_width}, per row: {artefact.row_limit}",
            "Number of variants: 1",
            f"Input: (1, -1, {artefact.hidden})",
            f"Output: (1, {width}, {artefact.vocab}), logits of {artefact.logits} positions",
            f"Layers: {artefact.layers} with {artefact.kv_heads} KV heads of {artefact.head_dim}",
            "",
        ]
    )
