"""Attention over packed ragged rows, and the KV memory of every slot.

Owns the KV tensors. A slot holds NaN wherever it was never written, so that reading a position that nobody computed
shows as NaN logits instead of passing for text. Registered with transformers' attention registry under `NAME`; the
call's row table reaches it as a keyword through the model's forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from ._kernel import Row

NAME = "mblt_packed_rows"


class KvMemory:
    """Keys and values of all slots: one tensor [2, K, kv_heads, max_cache, head_dim] per layer.

    The tensors are reserved at once, but the system gives memory to a slot only when its first call fills it with NaN.
    """

    def __init__(self, layers: int, slots: int, kv_heads: int, max_cache: int, head_dim: int) -> None:
        self._layers = [torch.empty(2, slots, kv_heads, max_cache, head_dim) for _ in range(layers)]
        self._used = [False] * slots

    def layer(self, index: int) -> torch.Tensor:
        return self._layers[index]

    def open(self, slot: int) -> None:
        """Make the slot readable: poison it if this is its first use."""
        if not self._used[slot]:
            for layer in self._layers:
                layer[:, slot].fill_(torch.nan)
            self._used[slot] = True

    def dump(self, slot: int) -> list[bytes]:
        """The whole slot, one blob per layer."""
        self.open(slot)
        return [b"".join(half.numpy().data for half in layer[:, slot]) for layer in self._layers]

    def load(self, slot: int, blobs: Sequence[bytes]) -> None:
        """Overwrite the whole slot with blobs of `dump` (sizes are checked by the caller)."""
        for layer, blob in zip(self._layers, blobs, strict=True):
            target = layer[:, slot]
            target.copy_(torch.frombuffer(bytearray(blob), dtype=torch.float32).view(target.shape))
        self._used[slot] = True


class _Span:
    """One row of a call: its tokens are [first, first + length) of the packed axis, its positions [start, end)."""

    __slots__ = ("end", "first", "length", "masks", "slot", "start")

    def __init__(self, row: Row, first: int) -> None:
        self.slot, self.first, self.length = row.cache_id, first, row.length
        self.start, self.end = row.cache_size, row.cache_size + row.length
        self.masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None) -> torch.Tensor:
        """[length, end] booleans: which positions each token sees; made once per call and window."""
        if window not in self.masks:
            query = torch.arange(self.start, self.end).unsqueeze(1)
            key = torch.arange(self.end)
            seen = key <= query
            if window is not None:
                seen &= key > query - window
            self.masks[window] = seen
        return self.masks[window]


class Call:
    """The row table of one device call, shared by all layers."""

    def __init__(self, memory: KvMemory, rows: Sequence[Row]) -> None:
        self.memory = memory
        self.spans: list[_Span] = []
        slots: list[int] = []
        positions: list[int] = []
        for row in rows:
            self.spans.append(_Span(row, len(positions)))
            slots += [row.cache_id] * row.length
            positions += range(row.cache_size, row.cache_size + row.length)
            memory.open(row.cache_id)
        self.slots = torch.tensor(slots)
        self.positions = torch.tensor(positions)
        self.last = torch.tensor([span.first + span.length - 1 for span in self.spans])


def register() -> None:
    """Make `NAME` known to transformers. Idempotent; no mask is ever built, rows bring their own."""
    AttentionInterface.register(NAME, attend_rows)
    AttentionMaskInterface.register(NAME, _no_mask)


def attend_rows(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: None,
    *,
    scaling: float,
    mblt_call: Call,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write this call's keys and values to their slots, then let every row attend to its own slot only.

    query [1, heads, T, head_dim], key and value [1, kv_heads, T, head_dim] -> [1, T, heads, head_dim].
    """
    keys, values = mblt_call.memory.layer(module.layer_idx)
    keys[mblt_call.slots, :, mblt_call.positions] = key[0].transpose(0, 1)
    values[mblt_call.slots, :, mblt_call.positions] = value[0].transpose(0, 1)
    tokens = query[0].transpose(0, 1)  # [T, heads, head_dim]
    parts = []
    for span in mblt_call.spans:
        rows = tokens[span.first : span.first + span.length]
        low = 0 if sliding_window is None else max(0, span.start + 1 - sliding_window)
        slot_keys = keys[span.slot, :, low : span.end].unsqueeze(0)
        slot_values = values[span.slot, :, low : span.end].unsqueeze(0)
        if span.length == 1:
            parts.append(_decode(rows, slot_keys, slot_values, scaling))
        else:
            parts.append(_prefill(rows, slot_keys, slot_values, span.mask(sliding_window)[:, low:], scaling))
    return torch.cat(parts).unsqueeze(0) if len(parts) > 1 else parts[0].unsqueeze(0), None


def _decode(row: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
    """One token sees all its slot: the heads that share a KV head become that head's queries, nothing is repeated."""
    _, heads, head_dim = row.shape
    kv_heads = keys.shape[1]
    grouped = row.reshape(1, kv_heads, heads // kv_heads, head_dim)
    return scaled_dot_product_attention(grouped, keys, values, scale=scaling).reshape(1, heads, head_dim)


def _prefill(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    out = scaled_dot_product_attention(
        rows.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _no_mask(*_: Any, **__: Any) -> None:
    return None
