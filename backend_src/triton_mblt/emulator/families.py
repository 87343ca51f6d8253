"""The five text families: what a checkpoint of each looks like, and what its released package looks like.

Owns every name that differs by family. Knows neither files nor weights. Names of checkpoint tensors are translated to
those of the transformers class that computes the family (the same, except for EXAONE 3.5, which is stored like Llama).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """One family. `name` is its model_type and GGUF architecture; `embedding` the tensor a released package carries."""

    name: str
    architecture: str
    embedding: str
    gguf_permuted: bool = False  # GGUF writers reorder Llama's q and k rows; the order is undone on reading

    @property
    def package_type(self) -> str:
        """model_type of the package's config.json."""
        return f"mobilint-{self.name}"


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("llama", "MobilintLlamaForCausalLM", "model.embed_tokens.weight", gguf_permuted=True),
        Family("qwen2", "MobilintQwen2ForCausalLM", "model.embed_tokens.weight"),
        Family("qwen3", "MobilintQwen3ForCausalLM", "model.embed_tokens.weight"),
        Family("exaone", "MobilintExaoneForCausalLM", "transformer.wte.weight"),
        Family("exaone4", "MobilintExaone4ForCausalLM", "model.embed_tokens.weight"),
    )
}

_EXAONE_TOP = {
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_EXAONE_LAYER = {
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.attention.q_proj": "self_attn.q_proj",
    "attn.attention.k_proj": "self_attn.k_proj",
    "attn.attention.v_proj": "self_attn.v_proj",
    "attn.attention.out_proj": "self_attn.o_proj",
    "mlp.c_fc_0": "mlp.gate_proj",
    "mlp.c_fc_1": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
_EXAONE_NAME = re.compile(r"transformer\.h\.(\d+)\.(.+)\.(weight|bias)")

# Keys about how a checkpoint was saved, not about the model.
_LOADING_ONLY = frozenset(
    ("architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache")
)

# Buffers some writers store beside the weights; they are computed, never read.
_COMPUTED = re.compile(r".*(rotary_emb\.inv_freq|rotary\.inv_freq|attention\.bias|attention\.masked_bias)")


def computed_name(family: Family, name: str) -> str | None:
    """The name under which the family's transformers class knows a checkpoint tensor; None for tensors to leave out."""
    if _COMPUTED.fullmatch(name):
        return None
    if family.name != "exaone":
        return name
    if name in _EXAONE_TOP:
        return _EXAONE_TOP[name]
    match = _EXAONE_NAME.fullmatch(name)
    if match is None or match[2] not in _EXAONE_LAYER:
        return name
    return f"model.layers.{match[1]}.{_EXAONE_LAYER[match[2]]}.{match[3]}"


def computed_config(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config for the transformers class that computes the family, from the checkpoint's config.json."""
    ours = {key: value for key, value in config.items() if key not in _LOADING_ONLY}
    if family.name == "exaone":
        ours = _exaone_as_llama(ours)
    ours["tie_word_embeddings"] = False  # an artefact always holds lm_head by itself
    return ours


def package_config(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """The model part of the package's config.json, from the checkpoint's."""
    ours = {key: value for key, value in config.items() if key not in _LOADING_ONLY}
    ours.update(architectures=[family.architecture], model_type=family.package_type, tie_word_embeddings=False)
    return ours


def is_tied(family: Family, config: Mapping[str, Any]) -> bool:
    """Whether lm_head is the embedding itself. Silence means what the family's own config class means by it."""
    return bool(config.get("tie_word_embeddings", family.name == "exaone"))


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings in whichever of transformers' two spellings the checkpoint has."""
    if "rope_parameters" in config:
        return {"rope_parameters": config["rope_parameters"]}
    return {"rope_theta": config.get("rope_theta", 10000.0), "rope_scaling": config.get("rope_scaling")}


def _exaone_as_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = config.get("num_layers", config.get("num_hidden_layers", 32))
    hidden = config.get("hidden_size", 2048)
    heads = config.get("num_attention_heads", 32)
    return {
        "model_type": "llama",
        "vocab_size": config.get("vocab_size", 102400),
        "hidden_size": hidden,
        "intermediate_size": config.get("intermediate_size") or 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "hidden_act": config.get("activation_function", "silu"),
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        **_rope(config),
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": config.get("eos_token_id"),
        "pad_token_id": config.get("pad_token_id"),
    }
