"""How many tokens a row may carry per call: the rules of contract 4.3 (config) and 2.3 (artefact)."""

from __future__ import annotations

from collections.abc import Mapping

BATCH_ROW_LIMIT = 128
FALLBACK = 128


def positive_int(value: object) -> int | None:
    """An int > 0 or a digit string, as the seed reads them; anything else (bool, float, text) is None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and value > 0 else None


def configured_chunk(value: object, core_mode: str | None) -> int:
    """`npu_prefill_chunk_size` of a package: an int, or a dict by core mode with default/DEFAULT, or one usable entry
    under auto."""
    if not isinstance(value, Mapping):
        return positive_int(value) or FALLBACK
    for name in (core_mode, "default", "DEFAULT"):
        chunk = positive_int(value.get(name)) if name is not None else None
        if chunk is not None:
            return chunk
    usable = [chunk for chunk in map(positive_int, value.values()) if chunk is not None]
    if core_mode in (None, "auto") and len(usable) == 1:
        return usable[0]
    return FALLBACK


def row_limit(configured: int, *, batched: bool, artefact_limit: int) -> int:
    """Tokens of one row in one call: the configured chunk, at most what the artefact takes, at most 128 on batch
    artefacts."""
    limit = min(configured, BATCH_ROW_LIMIT) if batched else configured
    return min(limit, artefact_limit) if artefact_limit > 0 else limit
