"""What a loaded model can do, read once at load and frozen."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

LogitsKind = Literal["last", "all"]


class Row(NamedTuple):
    """One sequence's share of a device call: `length` new tokens written at [cache_size, cache_size + length) of
    `cache_id`."""

    cache_id: int
    cache_size: int
    length: int


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and limits of a loaded text MXQ. Tokens and counts.

    `slots` is K, the cache_ids of the runtime (contract 2.1). `row_limit` bounds one row of a call, `call_limit` all
    rows together
    (contract 2.3). `logits` tells whether a call returns one row per sequence or one per token.
    """

    vocab_size: int
    hidden_size: int
    slots: int
    batched: bool
    max_cache: int
    row_limit: int
    call_limit: int
    logits: LogitsKind
    slot_bytes: int
    device: str
