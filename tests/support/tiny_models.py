"""Tiny random models of the five families: as Hugging Face checkpoints, as emulator packages, and as plain references.

A model is a function of its family and seed, so a package and its reference agree without sharing files. Scales are
chosen so that greedy text is varied, depends on all of its context, and rarely meets a near-tie.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM
from transformers.models.exaone4 import Exaone4Config, Exaone4ForCausalLM
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from triton_mblt.emulator.build import build_package
from triton_mblt.emulator.site.qbruntime._artefact import Logits, read_artefact
from triton_mblt.emulator.site.qbruntime._compute_model import load_model

FAMILY_NAMES = ("llama", "qwen2", "qwen3", "exaone", "exaone4")
EOS, USER, ASSISTANT = 0, 1, 2
MAX_POSITIONS = 512

_SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")
_MERGES = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("Ġ", "a"), ("e", "r"), ("o", "n"), ("Ġ", "s"), ("a", "n"))
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_EXAONE_NAMES = (
    ("model.embed_tokens.", "transformer.wte."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.o_proj", "attn.attention.out_proj"),
    ("self_attn.", "attn.attention."),
    ("gate_proj", "c_fc_0"),
    ("up_proj", "c_fc_1"),
    ("down_proj", "c_proj"),
)


def reference_model(family: str, seed: int = 0) -> Any:
    """The family's tiny model in plain transformers (EXAONE 3.5 as the Llama it is), float32, eval mode."""
    sizes = {**_SIZES, "vocab_size": len(_vocabulary())}
    torch.manual_seed(1000 * seed + FAMILY_NAMES.index(family))
    model: Any
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**{**sizes, "tie_word_embeddings": True, "rope_parameters": _LLAMA3_ROPE}))
    elif family == "exaone":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    else:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        model = Exaone4ForCausalLM(Exaone4Config(**sizes, sliding_window=12, layer_types=kinds))
    _randomise(model)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = EOS
    return model.eval().requires_grad_(False)


def demo_reference(package: Path) -> Any:
    """Plain transformers on the weights of any built package: its own attention and cache, none of the emulator's."""
    artefact = read_artefact(next(package.glob("*.mxq")))
    model = load_model(artefact, "sdpa")
    (embedding,) = load_file(package / "model.safetensors").values()
    model.model.embed_tokens = torch.nn.Embedding.from_pretrained(embedding)
    model.config.use_cache = True
    generation = json.loads((package / "generation_config.json").read_text())
    model.generation_config.eos_token_id = generation.get("eos_token_id")
    model.generation_config.pad_token_id = generation.get("pad_token_id", generation.get("eos_token_id"))
    return model


@torch.inference_mode()
def greedy(model: Any, prompt: Sequence[int], count: int, *, stop_at_eos: bool = True) -> list[int]:
    """`count` greedy tokens (fewer when it ends itself) by transformers' own generate()."""
    settings = {} if stop_at_eos else {"eos_token_id": None}
    out = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),  # else padding is guessed from ids
        max_new_tokens=count,
        do_sample=False,
        **settings,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def tiny_checkpoint(family: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write the family's tiny model as a checkpoint folder: config, weights, tokenizer, generation config."""
    model = reference_model(family, seed)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    config = model.config.to_dict()
    if family == "exaone":
        state = {_exaone_name(name): tensor for name, tensor in state.items()}
        config = _exaone_config(config)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS, "pad_token_id": EOS}))
    _write_tokenizer(folder)
    return folder


def tiny_package(
    family: str,
    tmp_path: Path,
    *,
    batch: int = 1,
    max_cache: int = 256,
    logits: Logits = "last",
    chunk: int = 16,
    seed: int = 0,
) -> Path:
    """Build the family's tiny model into a package folder below `tmp_path`; the same call again finds it there."""
    name = f"tiny-{family}-s{seed}-k{batch}-c{max_cache}-{chunk}-{logits}"
    out = tmp_path / name
    if out.is_dir():
        return out
    source = tiny_checkpoint(family, tmp_path / f"checkpoint-{family}-s{seed}", seed)
    return build_package(source, out, max_batch_size=batch, max_cache=max_cache, chunk=chunk, logits=logits)


def _vocabulary() -> list[str]:
    merged = ["".join(pair) for pair in _MERGES]
    return [*_SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *merged]


def _write_tokenizer(folder: Path) -> None:
    words = {word: number for number, word in enumerate(_vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in _SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIALS[EOS],
        "pad_token": _SPECIALS[EOS],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@torch.no_grad()
def _randomise(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight") or "layernorm" in name:
            parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
        elif name.endswith("bias"):
            parameter.normal_(0, 0.3)
        elif "embed_tokens" in name:
            parameter.normal_(0, 1)
        else:
            gain = 6.0 if "lm_head" in name else 2.0 if ("q_proj" in name or "k_proj" in name) else 1.5
            parameter.normal_(0, gain / parameter.shape[1] ** 0.5)


def _exaone_name(name: str) -> str:
    for ours, theirs in _EXAONE_NAMES:
        name = name.replace(ours, theirs)
    return name


def _exaone_config(llama: dict[str, Any]) -> dict[str, Any]:
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    tokens = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")
    return {
        **{key: llama[key] for key in (*kept, *tokens)},
        "model_type": "exaone",
        "architectures": ["ExaoneForCausalLM"],
        "num_layers": llama["num_hidden_layers"],
        "activation_function": "silu",
        "layer_norm_epsilon": llama["rms_norm_eps"],
        "rope_theta": llama["rope_parameters"]["rope_theta"],
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
