"""Reads a GGUF file as a build `Source`: names, config and numbers become those of a Hugging Face checkpoint.

Owns the translation from GGUF's conventions. Weights are dequantised to float32 a block of rows at a time. The
tokenizer is rebuilt in gguf_tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.build_source import PIECE_BYTES, Source, SourceTensor, array_pieces
from triton_mblt.emulator.families import FAMILIES, Family
from triton_mblt.emulator.gguf_tokenizer import read_tokenizer
from triton_mblt.emulator.site.qbruntime._artefact import Chunks

_TOP = {"output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"


class GgufFields:
    """The metadata of one file, read with a type and an error that names the key."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path = path
        self._fields = fields

    def has(self, key: str) -> bool:
        return key in self._fields

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of `key`; the default when absent; InvalidRequest when absent without one, or of another type."""
        if key not in self._fields:
            if default is None:
                raise InvalidRequest(f"{self.path} lacks the metadata key {key}", param="source")
            return default
        value = self._fields[key].contents()
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise InvalidRequest(f"{self.path}: metadata key {key} is {value!r}", param="source")
        return value


def read_gguf(path: Path) -> Source:
    """Describe the model in a GGUF file. Raises InvalidRequest for what cannot be read or computed."""
    reader = _open(path)
    fields = GgufFields(path, reader.fields)
    arch = fields.get("general.architecture", str)
    if arch not in FAMILIES:
        raise InvalidRequest(f"{path}: architecture {arch!r} is not one of {', '.join(FAMILIES)}", param="source")
    family = FAMILIES[arch]
    stored = {tensor.name: tensor for tensor in reader.tensors}
    factors = stored.pop(_ROPE_FACTORS, None)
    config = _config(family, fields, stored)
    tokenizer = read_tokenizer(fields)
    return Source(
        path=path,
        family=family,
        config={**config, **tokenizer.token_ids},
        tensors={_name(path, family, name): _tensor(family, config, name, tensor) for name, tensor in stored.items()},
        generation=tokenizer.token_ids,
        write_tokenizer=tokenizer.write,
        rope_factors=None if factors is None else _plain(factors),
    )


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise InvalidRequest(f"{path} is not a readable GGUF file: {error}", param="source") from error


def _config(family: Family, fields: GgufFields, stored: Iterable[str]) -> dict[str, Any]:
    arch = family.name
    hidden = fields.get(f"{arch}.embedding_length", int)
    heads = fields.get(f"{arch}.attention.head_count", int)
    head_dim = fields.get(f"{arch}.attention.key_length", int, hidden // heads)
    config = {
        "model_type": family.name,
        "vocab_size": len(fields.get("tokenizer.ggml.tokens", list)),
        "hidden_size": hidden,
        "intermediate_size": fields.get(f"{arch}.feed_forward_length", int),
        "num_hidden_layers": fields.get(f"{arch}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get(f"{arch}.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": fields.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "max_position_embeddings": fields.get(f"{arch}.context_length", int),
        "rope_theta": fields.get(f"{arch}.rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(arch, fields),
        "tie_word_embeddings": "output.weight" not in stored,
    }
    if fields.get(f"{arch}.rope.dimension_count", int, head_dim) != head_dim:
        raise InvalidRequest(f"{fields.path}: partial rotary embeddings are not supported", param="source")
    if fields.has(f"{arch}.attention.sliding_window"):
        raise InvalidRequest(f"{fields.path}: sliding windows are read from checkpoints only", param="source")
    if family.name == "exaone4":
        config.update(sliding_window=None, layer_types=["full_attention"] * int(config["num_hidden_layers"]))
    if "blk.0.attn_q.bias" in stored:
        config["attention_bias"] = True
    return _exaone_keys(config) if family.name == "exaone" else config


def _exaone_keys(config: dict[str, Any]) -> dict[str, Any]:
    """EXAONE 3.5's own names for three settings."""
    names = {
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    return {names.get(key, key): value for key, value in config.items()}


def _rope_scaling(arch: str, fields: GgufFields) -> dict[str, Any] | None:
    kind = fields.get(f"{arch}.rope.scaling.type", str, "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.get(f"{arch}.rope.scaling.factor", float)}
    raise InvalidRequest(f"{fields.path}: rope scaling {kind!r} is read from checkpoints only", param="source")


def _name(path: Path, family: Family, name: str) -> str:
    """The name under which transformers computes the tensor; only the embedding has the name its package needs."""
    stem, _, ending = name.rpartition(".")
    if name == "token_embd.weight":
        return family.embedding
    if stem in _TOP:
        return f"{_TOP[stem]}.{ending}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{ending}"
    raise InvalidRequest(f"{path}: tensor {name} is not known", param="source")


def _tensor(family: Family, config: dict[str, Any], name: str, tensor: Any) -> SourceTensor:
    if family.gguf_permuted and ".attn_q." in name:
        return _unpermuted(tensor, config["num_attention_heads"])
    if family.gguf_permuted and ".attn_k." in name:
        return _unpermuted(tensor, config["num_key_value_heads"])
    return _plain(tensor)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in reversed(tensor.shape))


def _plain(tensor: Any) -> SourceTensor:
    return SourceTensor("F32", _shape(tensor), partial(_row_blocks, tensor))


def _row_blocks(tensor: Any) -> Chunks:
    shape = _shape(tensor)
    rows = tensor.data.reshape(shape[0], -1) if len(shape) > 1 else tensor.data.reshape(1, -1)
    step = max(1, PIECE_BYTES // (4 * shape[-1]))
    for start in range(0, rows.shape[0], step):
        yield from array_pieces(_dequantised(rows[start : start + step], tensor))


def _unpermuted(tensor: Any, heads: int) -> SourceTensor:
    """Llama's GGUF writers interleave the two halves of each head's rotary pairs; put them back one after the other."""
    shape = _shape(tensor)

    def read() -> Chunks:
        rows = _dequantised(tensor.data.reshape(shape[0], -1), tensor)
        pairs = rows.reshape(heads, shape[0] // heads // 2, 2, -1)
        yield from array_pieces(pairs.swapaxes(1, 2))

    return SourceTensor("F32", shape, read)


def _dequantised(rows: Any, tensor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    from gguf.quants import dequantize

    values: np.ndarray[Any, np.dtype[np.float32]] = dequantize(rows, tensor.tensor_type).astype(np.float32, copy=False)
    return values
