"""Packages built from checkpoints: shaped like released ones, complete or absent, refusals that name the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import FAMILY_NAMES, reference_model, tiny_checkpoint

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.build import build_package
from triton_mblt.emulator.site.qbruntime._artefact import read_artefact
from triton_mblt.emulator.site.qbruntime._compute import ComputeKernel
from triton_mblt.emulator.site.qbruntime._kernel import Row

EMBEDDING_KEYS = dict.fromkeys(FAMILY_NAMES, "model.embed_tokens.weight") | {"exaone": "transformer.wte.weight"}
CLASS_NAMES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "exaone": "Exaone", "exaone4": "Exaone4"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint("qwen2", tmp_path / "checkpoint")


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    state = load_file(folder / "model.safetensors") | {name.replace("__", "."): t for name, t in changes.items()}
    save_file({name: t for name, t in state.items() if t is not None}, folder / "model.safetensors")


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_package_is_shaped_like_a_released_one(tmp_path: Path, family: str) -> None:
    source = tiny_checkpoint(family, tmp_path / "checkpoint")
    package = build_package(source, tmp_path / "My-Model", max_batch_size=2, max_cache=100, chunk=32, logits="all")
    names = ["My-Model.mxq", "config.json", "generation_config.json", "model.safetensors"]
    assert sorted(file.name for file in package.iterdir()) == [*names, "tokenizer.json", "tokenizer_config.json"]
    config = json.loads((package / "config.json").read_text())
    assert config["model_type"] == f"mobilint-{family}"
    assert config["architectures"] == [f"Mobilint{CLASS_NAMES[family]}ForCausalLM"]
    assert (config["mxq_path"], config["core_mode"], config["target_cores"]) == ("My-Model.mxq", "single", ["0:0"])
    assert (config["max_batch_size"], config["npu_prefill_chunk_size"]) == (2, 32)
    tensors = load_file(package / "model.safetensors")
    assert list(tensors) == [EMBEDDING_KEYS[family]]
    assert torch.equal(tensors[EMBEDDING_KEYS[family]], reference_model(family).model.embed_tokens.weight)
    artefact = read_artefact(package / "My-Model.mxq")
    assert (artefact.batch, artefact.max_cache, artefact.row_limit, artefact.max_width) == (2, 100, 32, 64)
    assert (artefact.family, artefact.logits, artefact.build_id) == (family, "all", config["emulator_build_id"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_kept_and_computed_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    source = tiny_checkpoint("qwen3", tmp_path / "checkpoint", dtype=dtype)
    package = build_package(source, tmp_path / "out")
    table = load_file(package / "model.safetensors")["model.embed_tokens.weight"]
    assert table.dtype == torch.float32
    reference = reference_model("qwen3")
    for parameter in reference.parameters():
        parameter.data = parameter.data.to(dtype).to(torch.float32)
    tokens = [7, 100, 200, 9]
    got = ComputeKernel(read_artefact(package / "out.mxq")).forward([table[tokens].numpy()], [Row(4, 0, 0)])
    with torch.inference_mode():
        want = reference(torch.tensor([tokens])).logits[0, -1].numpy()
    assert np.abs(got[0] - want).max() < 1e-4


def test_shards_are_found_by_their_index(tmp_path: Path, checkpoint: Path) -> None:
    whole = build_package(checkpoint, tmp_path / "whole")
    state = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names = sorted(state)
    shards = {"one.safetensors": names[:9], "two.safetensors": names[9:]}
    for shard, held in shards.items():
        save_file({name: state[name] for name in held}, checkpoint / shard)
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = build_package(checkpoint, tmp_path / "sharded")
    ids = [read_artefact(next(package.glob("*.mxq"))).build_id for package in (whole, sharded)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": 100000}, "max_batch_size"),
        ({"max_cache": 1}, "max_cache"),
        ({"max_cache": 513}, "max_cache"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": 129, "max_batch_size": 2}, "chunk"),
        ({"logits": "some"}, "logits"),
    ],
)
def test_senseless_arguments_are_named(tmp_path: Path, checkpoint: Path, arguments: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_package(checkpoint, tmp_path / "out", **arguments)
    assert caught.value.param == param
    assert sorted(tmp_path.iterdir()) == [checkpoint]


def test_a_chunk_longer_than_the_cache_becomes_the_cache(tmp_path: Path, checkpoint: Path) -> None:
    package = build_package(checkpoint, tmp_path / "out", max_cache=40)
    assert read_artefact(package / "out.mxq").row_limit == 40
    assert json.loads((package / "config.json").read_text())["npu_prefill_chunk_size"] == 40


REFUSED = [
    (lambda f: edit_config(f, model_type="mamba"), "model_type 'mamba' is not one of llama"),
    (lambda f: edit_config(f, model_type="mobilint-qwen2"), "is a package already"),
    (lambda f: edit_config(f, quantization_config={"bits": 4}), "quantised"),
    (lambda f: edit_config(f, hidden_size=32), "has shape"),
    (lambda f: edit_config(f, num_attention_heads="four"), "not usable"),
    (lambda f: edit_config(f, max_position_embeddings="many"), "max_position_embeddings is 'many'"),
    (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    (lambda f: (f / "config.json").unlink(), "No such file"),
    (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
    (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "no model.safetensors"),
    (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x02}q\x00."), "not a safetensors file"),
    (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]), "truncated"),
    (lambda f: edit_weights(f, model__norm__weight=None), "lacks the tensor model.norm.weight"),
    (lambda f: edit_weights(f, model__embed_tokens__weight=None), "lacks the tensor model.embed_tokens.weight"),
    (lambda f: edit_weights(f, model__extra__bias=torch.ones(3)), "tensors its config does not ask for: model.extra"),
    (lambda f: edit_weights(f, model__norm__weight=torch.ones(64, dtype=torch.int8)), "elements of type I8"),
    (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
        "outside its folder",
    ),
]


@pytest.mark.parametrize(("damage", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_unusable_checkpoints_are_refused_and_leave_nothing(
    tmp_path: Path, checkpoint: Path, damage: Any, reason: str
) -> None:
    damage(checkpoint)
    with pytest.raises(InvalidRequest, match=reason):
        build_package(checkpoint, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == [checkpoint]


def test_a_source_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="does not exist"):
        build_package(tmp_path / "none", tmp_path / "out")
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(InvalidRequest, match=r"neither a checkpoint folder nor a \.gguf file"):
        build_package(tmp_path / "model.onnx", tmp_path / "out")


def test_an_existing_folder_is_kept_unless_asked(tmp_path: Path, checkpoint: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(InvalidRequest, match="exists already"):
        build_package(checkpoint, out)
    edit_weights(checkpoint, model__norm__weight=None)
    with pytest.raises(InvalidRequest):
        build_package(checkpoint, out, overwrite=True)
    assert (out / "mine.txt").read_text() == "keep", "a failed build must not touch what was there"
    good = tiny_checkpoint("llama", tmp_path / "good")
    build_package(good, out, overwrite=True)
    assert not (out / "mine.txt").exists()
    assert (out / "out.mxq").is_file()
    assert sorted(tmp_path.iterdir()) == sorted([checkpoint, good, out])
