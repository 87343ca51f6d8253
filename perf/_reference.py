#!/usr/bin/env python3
"""transformers' own generate() as a process: for each line of input, one greedy answer and its tokens/s on a line.

Reads a checkpoint folder, or the GGUF file of a Llama-shaped model (transformers would want another package for that).
Knows nothing of this project.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Clock(BaseStreamer):
    """Notes when tokens come; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _value: Any) -> None:
        self.times.append(time.monotonic())

    def end(self) -> None:
        """The last token has come already."""

    def rate(self) -> float:
        """Tokens per second after the first token."""
        return (len(self.times) - 2) / (self.times[-1] - self.times[1])


def load(weights: Path) -> Any:
    """The model in float32."""
    model = load_gguf(weights) if weights.is_file() else AutoModelForCausalLM.from_pretrained(weights, dtype="float32")
    model.train(False)
    return model


def load_gguf(path: Path) -> Any:
    """A Llama from its GGUF file, dequantised."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    config = llama_config(reader)
    heads: dict[str, Any] = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for tensor in reader.tensors:
        layer, name = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()  # type: ignore[union-attr]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if name in heads:  # GGUF interleaves the two halves of each head's rotary pairs
            values = values.reshape(int(heads[name]), -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        state[f"{f'model.layers.{layer}.' if layer else ''}{_NAMES[name]}.weight"] = values
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model


def llama_config(reader: Any) -> LlamaConfig:
    """The shape of the model in a GGUF file."""

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    return LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].contents()),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=field("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=not any(tensor.name == "output.weight" for tensor in reader.tensors),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load(given.weights)
    ids = torch.arange(100, 118)[None]
    for _ in sys.stdin:
        clock = Clock()
        length = {"max_new_tokens": given.tokens, "min_new_tokens": given.tokens}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, streamer=clock, **length)
        print(clock.rate(), flush=True)


if __name__ == "__main__":
    main()
