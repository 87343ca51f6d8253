"""Builds a package for the emulated NPU, shaped like a released one, from a checkpoint folder or a GGUF file.

Owns what a package holds and that it appears complete or not at all. Reading the sources is done elsewhere; the bytes
of the artefact are written by the format's own module.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.build_checkpoint import read_checkpoint
from triton_mblt.emulator.build_source import Source, SourceTensor, as_float32
from triton_mblt.emulator.families import computed_config, computed_name, is_tied, package_config
from triton_mblt.emulator.gguf_source import read_gguf
from triton_mblt.emulator.site.qbruntime._artefact import (
    ArtefactError,
    Chunks,
    Limits,
    Logits,
    TensorSpec,
    write_artefact,
)

BATCH_ROW_LIMIT = 128  # tokens of one row in one call of a batch artefact, a limit of the hardware's compiler
DEFAULT_MAX_CACHE = 4096
_MAX_BATCH = 256

Parts = list[tuple[TensorSpec, Callable[[], Chunks]]]


def build_package(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_batch_size: int = 1,
    max_cache: int | None = None,
    chunk: int = 128,
    logits: Logits = "last",
    overwrite: bool = False,
) -> Path:
    """Build a package and return its folder.

    source: a Hugging Face checkpoint folder (config.json, safetensors, tokenizer.json) of a supported family, or a
    .gguf. out: the folder to make; its last name becomes the artefact's. max_batch_size: rows K. max_cache: tokens of
    one slot (default: the model's context, at most 4096). chunk: most tokens of one row in one call. logits: "last"
    gives one row of logits per row, "all" one per token. overwrite: replace an existing folder.

    Raises InvalidRequest, with `param` naming the argument at fault; then `out` is as it was before.
    """
    target = Path(out)
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise InvalidRequest(f"{target} exists already", param="out")
    model = _read_source(Path(source))
    limits = _limits(model, max_batch_size, max_cache, chunk, logits)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.parent / f".{target.name}.building-{os.getpid()}-{secrets.token_hex(4)}"
        scratch.mkdir()
    except OSError as error:
        raise InvalidRequest(f"cannot write {target}: {error.strerror or error}", param="out") from error
    try:
        _fill(scratch, target.name, model, limits)
        _put(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _read_source(path: Path) -> Source:
    if path.is_dir():
        return read_checkpoint(path)
    if path.suffix == ".gguf" and path.is_file():
        return read_gguf(path)
    kind = "is neither a checkpoint folder nor a .gguf file" if path.exists() else "does not exist"
    raise InvalidRequest(f"{path} {kind}", param="source")


def _limits(model: Source, batch: int, max_cache: int | None, chunk: int, logits: str) -> Limits:
    context = model.config.get("max_position_embeddings", DEFAULT_MAX_CACHE)
    if not isinstance(context, int):
        raise InvalidRequest(f"{model.path}: max_position_embeddings is {context!r}", param="source")
    cache = min(context, DEFAULT_MAX_CACHE) if max_cache is None else max_cache
    if not 1 <= batch <= _MAX_BATCH:
        raise InvalidRequest(f"max_batch_size {batch} is not between 1 and {_MAX_BATCH}", param="max_batch_size")
    if not 2 <= cache <= context:
        message = f"max_cache {cache} is not between 2 and the model's context of {context}"
        raise InvalidRequest(message, param="max_cache")
    if chunk < 1 or (batch > 1 and chunk > BATCH_ROW_LIMIT):
        most = f" and {BATCH_ROW_LIMIT} (the limit per row of a batch artefact)" if batch > 1 else ""
        raise InvalidRequest(f"chunk {chunk} is not between 1{most}", param="chunk")
    if logits not in ("last", "all"):
        raise InvalidRequest(f"logits {logits!r} is neither 'last' nor 'all'", param="logits")
    row_limit = min(chunk, cache)
    return Limits(batch, cache, row_limit * batch, row_limit, "all" if logits == "all" else "last")


def _fill(folder: Path, name: str, model: Source, limits: Limits) -> None:
    """Write every file of the package."""
    config = package_config(model.family, model.config)
    config.update(
        mxq_path=f"{name}.mxq",
        core_mode="single",
        target_cores=["0:0"],
        max_batch_size=limits.batch,
        npu_prefill_chunk_size=limits.row_limit,
        dtype="float32",
    )
    embedding = _tensor(model, model.family.embedding)
    config["emulator_build_id"] = _write_mxq(folder / f"{name}.mxq", model, limits)
    _write_safetensors(folder / "model.safetensors", model.family.embedding, as_float32(embedding))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", model.generation)
    model.write_tokenizer(folder)


def _write_mxq(path: Path, model: Source, limits: Limits) -> str:
    from triton_mblt.emulator.site.qbruntime import _compute_model  # brings torch

    config = computed_config(model.family, model.config)
    try:
        skeleton = _compute_model.skeleton(model.family.name, config)
        wanted = {name: tuple(t.shape) for name, t in skeleton.state_dict().items() if name != _compute_model.EMBEDDING}
        attention = skeleton.model.layers[0].self_attn
        parts = _parts(model, wanted)
        if model.rope_factors is not None:
            parts.append((model.rope_factors.spec(_compute_model.ROPE_FACTORS), model.rope_factors.read))
        return write_artefact(
            path,
            family=model.family.name,
            limits=limits,
            vocab=skeleton.config.vocab_size,
            hidden=skeleton.config.hidden_size,
            layers=skeleton.config.num_hidden_layers,
            kv_heads=skeleton.config.num_key_value_heads,
            head_dim=attention.head_dim,
            config=config,
            tensors=parts,
        )
    except ArtefactError as error:
        raise InvalidRequest(f"{model.path}: {error}", param="source") from error


def _parts(model: Source, wanted: Mapping[str, tuple[int, ...]]) -> Parts:
    """The tensors the computing class asks for, in its order, each found in the source and of the right shape."""
    found = {computed_name(model.family, name): tensor for name, tensor in model.tensors.items()}
    if is_tied(model.family, model.config):
        found["lm_head.weight"] = _tensor(model, model.family.embedding)
    unknown = sorted(set(found) - set(wanted) - {None, "model.embed_tokens.weight", "lm_head.weight"}, key=str)
    if unknown:  # leaving out a tensor the model was trained with would give wrong text without an error
        message = f"{model.path} holds tensors its config does not ask for: {unknown[0]} ({len(unknown)} in all)"
        raise InvalidRequest(message, param="source")
    parts: Parts = []
    for name, shape in wanted.items():
        tensor = found.get(name)
        if tensor is None:
            raise InvalidRequest(f"{model.path} lacks the tensor {name}", param="source")
        if tensor.shape != shape:
            message = f"{model.path}: {name} has shape {tensor.shape}, the config asks for {shape}"
            raise InvalidRequest(message, param="source")
        parts.append((tensor.spec(name), tensor.read))
    return parts


def _tensor(model: Source, name: str) -> SourceTensor:
    if name not in model.tensors:
        raise InvalidRequest(f"{model.path} lacks the tensor {name}", param="source")
    return model.tensors[name]


def _write_safetensors(path: Path, name: str, tensor: SourceTensor) -> None:
    spec = tensor.spec(name)
    entry = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [0, spec.nbytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, name: entry}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        for piece in tensor.read():
            stream.write(piece)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _put(scratch: Path, target: Path) -> None:
    """Move the finished folder into place; an old one leaves only when the new one is complete."""
    old = scratch.with_name(scratch.name + ".old")
    if target.exists():
        target.rename(old)
    scratch.rename(target)
    shutil.rmtree(old, ignore_errors=True)
