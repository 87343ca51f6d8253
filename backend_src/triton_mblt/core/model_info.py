"""Limits of the loaded model: what the engine found out, what crosses the pipe, and what the door checks against."""

from __future__ import annotations

import msgspec


class ModelInfo(msgspec.Struct, frozen=True):
    """Limits of the loaded model that the door checks against. Tokens, unless said otherwise."""

    name: str
    vocab_size: int
    max_model_len: int
    slots: int
    prefill_chunk: int
    logits: str
    eos_token_ids: tuple[int, ...]
    device: str
