"""What an artefact looks like from outside: shapes, buffers and caches, in the runtime's terms."""

from __future__ import annotations

import hashlib

from ._artefact import Artefact, cache_bytes, cache_name
from ._buffer_info import BufferInfo
from ._enums import CacheType
from ._values import CacheInfo

Shape = tuple[int, ...]


def input_shapes(artefact: Artefact) -> list[Shape]:
    """One input of embeddings, any number of tokens. K is not to be seen here."""
    return [(1, -1, artefact.hidden)]


def output_shapes(artefact: Artefact) -> list[Shape]:
    """Logits. Only a model of one slot with last-position logits has a fixed number of rows."""
    rows = 1 if artefact.batch == 1 and artefact.logits == "last" else -1
    return [(1, rows, artefact.vocab)]


def input_buffers(artefact: Artefact) -> list[BufferInfo]:
    """Limits of the input: `max_width` tokens of a call, `max_cache_size` tokens of a slot."""
    return [_buffer(artefact.hidden, artefact.max_width, artefact.max_cache)]


def output_buffers(artefact: Artefact) -> list[BufferInfo]:
    """Limits of the output: `max_width` is the most rows of logits that one call gives."""
    rows = artefact.max_width if artefact.logits == "all" else artefact.batch
    return [_buffer(artefact.vocab, rows, artefact.max_cache)]


def cache_infos(artefact: Artefact) -> list[CacheInfo]:
    """One cache per layer; `num_batches` is K."""
    kind = CacheType.Batch if artefact.batch > 1 else CacheType.Default
    return [
        CacheInfo(kind, cache_name(layer), _layer_hash(artefact, layer), size, artefact.batch)
        for layer, size in enumerate(cache_bytes(artefact))
    ]


def _buffer(channel: int, rows: int, max_cache: int) -> BufferInfo:
    return BufferInfo(
        original_height=1,
        original_width=1,
        original_channel=channel,
        reshaped_height=1,
        reshaped_width=1,
        reshaped_channel=channel,
        height=1,
        width=1,
        channel=channel,
        max_height=1,
        max_width=rows,
        max_channel=channel,
        max_cache_size=max_cache,
    )


def _layer_hash(artefact: Artefact, layer: int) -> str:
    return hashlib.sha256(f"{artefact.build_id}/{layer}".encode()).hexdigest()[:16]
