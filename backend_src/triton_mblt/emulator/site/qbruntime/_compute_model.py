"""From an artefact's weights to a torch module: transformers' own classes, filled from the file, without an embedding.

Owns which class computes a family and how stored tensors become parameters. Knows nothing of calls, rows or caches.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from ._artefact import Artefact, ArtefactError, TensorPlace

# EXAONE 3.5 has no class in transformers. Its arithmetic is Llama's, and its tensors are stored under Llama's names.
CLASSES: Mapping[str, tuple[str, str]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "exaone": ("LlamaConfig", "LlamaForCausalLM"),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM"),
}
EMBEDDING = "model.embed_tokens.weight"
ROPE_FACTORS = "rope_factors"  # optional tensor: each rotary frequency is divided by it (a GGUF's `rope_freqs`)

_TORCH_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def skeleton(family: str, config: Mapping[str, Any], attention: str = "sdpa") -> Any:
    """The family's transformers model on the meta device: names and shapes without memory.

    Raises ArtefactError for a family this emulator cannot compute or a config its class refuses.
    """
    if family not in CLASSES:
        raise ArtefactError(f"family {family!r} is not one of {', '.join(CLASSES)}")
    config_name, model_name = CLASSES[family]
    try:
        parsed = getattr(transformers, config_name).from_dict(dict(config))
        parsed.use_cache = False
        parsed._attn_implementation = attention
        with torch.device("meta"):
            return getattr(transformers, model_name)(parsed)
    except (StrictDataclassError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtefactError(f"config is not usable by {model_name}: {error}") from error


def load_model(artefact: Artefact, attention: str) -> Any:
    """The artefact's model in float32, in eval mode, its `embed_tokens` removed (embeddings are looked up on the host).

    Raises ArtefactError when a tensor is missing, superfluous, of another shape, or fails its checksum.
    """
    model = skeleton(artefact.family, artefact.config, attention)
    expected = {name: tensor for name, tensor in model.state_dict().items() if name != EMBEDDING}
    stored = set(artefact.tensors) - {ROPE_FACTORS}
    if stored != set(expected):
        odd = sorted(stored ^ set(expected))
        raise ArtefactError(f"{artefact.path} has other tensors than {artefact.family}: {odd[0]} ({len(odd)} differ)")
    state = {}
    for name, tensor in expected.items():
        place = artefact.tensors[name]
        shape = tuple(tensor.shape)
        if place.shape != shape:
            raise ArtefactError(f"{artefact.path}: {name} has shape {place.shape}, the config asks for {shape}")
        state[name] = _load(artefact.path, name, place)
    # Rotary tables are computed, not stored: build them again outside the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    if ROPE_FACTORS in artefact.tensors:
        factors = _load(artefact.path, ROPE_FACTORS, artefact.tensors[ROPE_FACTORS])
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / factors
    model.load_state_dict(state, strict=False, assign=True)
    model.model.embed_tokens = None
    return model.eval().requires_grad_(False)


def _load(path: str, name: str, place: TensorPlace) -> torch.Tensor:
    """Read one tensor into memory of its own (a mapped file that is replaced or cut would kill the process)."""
    raw = np.fromfile(path, dtype=np.uint8, count=place.nbytes, offset=place.offset)
    if raw.nbytes != place.nbytes or zlib.crc32(raw.data) != place.crc32:
        raise ArtefactError(f"{path} is corrupt: tensor {name} fails its checksum")
    if math.prod(place.shape) == 0:
        raise ArtefactError(f"{path}: tensor {name} is empty")
    return torch.from_numpy(raw).view(_TORCH_TYPES[place.dtype]).view(place.shape).to(torch.float32)
