"""Reads a Hugging Face checkpoint folder (config.json and safetensors files) as a build `Source`.

Owns the checks on what a folder holds. Pickled weights are refused: reading them runs code.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.build_source import PIECE_BYTES, Source, SourceTensor
from triton_mblt.emulator.families import FAMILIES
from triton_mblt.emulator.site.qbruntime._artefact import ITEM_BYTES, Chunks, TensorSpec

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_MAX_HEADER = 100 * 1024 * 1024


def read_checkpoint(folder: Path) -> Source:
    """Check the folder and describe it; weights are read later, tensor by tensor.

    Raises InvalidRequest, naming what is missing or not supported.
    """
    config = read_json(folder / "config.json")
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type.startswith("mobilint-"):
        raise InvalidRequest(
            f"{folder} is a package already ({model_type}); build from the original checkpoint", param="source"
        )
    if model_type not in FAMILIES:
        raise InvalidRequest(f"{folder}: model_type {model_type!r} is not one of {', '.join(FAMILIES)}", param="source")
    if config.get("quantization_config"):
        raise InvalidRequest(f"{folder} holds quantised weights; build from the original checkpoint", param="source")
    if not (folder / "tokenizer.json").is_file():
        raise InvalidRequest(f"{folder} has no tokenizer.json", param="source")
    generation = folder / "generation_config.json"
    return Source(
        path=folder,
        family=FAMILIES[str(model_type)],
        config=config,
        tensors=_read_tensors(folder),
        generation=read_json(generation) if generation.is_file() else _generation_from(config),
        write_tokenizer=partial(_copy_tokenizer, folder),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises InvalidRequest when the file is missing or is not one."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}", param="source") from error
    except ValueError as error:
        raise InvalidRequest(f"{path} is not valid JSON: {error}", param="source") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} is not a JSON object", param="source")
    return value


def _generation_from(config: dict[str, Any]) -> dict[str, Any]:
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: config[key] for key in keys if config.get(key) is not None}


def _copy_tokenizer(folder: Path, out: Path) -> None:
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)


def _read_tensors(folder: Path) -> dict[str, SourceTensor]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _shards(index)
    else:
        names = ["model.safetensors"] if (folder / "model.safetensors").is_file() else []
    if not names:
        raise InvalidRequest(f"{folder} has no model.safetensors (other weight formats are not read)", param="source")
    tensors: dict[str, SourceTensor] = {}
    for name in names:
        tensors.update(_read_safetensors(folder / name))
    return tensors


def _shards(index: Path) -> list[str]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise InvalidRequest(f"{index} has no usable weight_map", param="source")
    names = sorted(set(table.values()))
    if any(Path(name).name != name for name in names):
        raise InvalidRequest(f"{index} names files outside its folder", param="source")
    return names


def _read_safetensors(path: Path) -> dict[str, SourceTensor]:
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _MAX_HEADER:
                raise InvalidRequest(f"{path} is not a safetensors file", param="source")
            header = json.loads(stream.read(length))
        size = path.stat().st_size
        return {
            name: _tensor(path, name, entry, 8 + length, size)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}", param="source") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{path} is not a safetensors file: {error!r}", param="source") from error


def _tensor(path: Path, name: str, entry: dict[str, Any], data_at: int, size: int) -> SourceTensor:
    dtype, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
    if dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise InvalidRequest(
            f"{path}: tensor {name} has elements of type {dtype}; only {known} are read", param="source"
        )
    start, end = (data_at + int(offset) for offset in entry["data_offsets"])
    if end - start != TensorSpec(name, dtype, shape).nbytes or start < data_at or end > size:
        raise InvalidRequest(f"{path} is truncated or corrupt at tensor {name}", param="source")
    return SourceTensor(dtype, shape, partial(_pieces, path, start, end))


def _pieces(path: Path, start: int, end: int) -> Chunks:
    with path.open("rb") as stream:
        stream.seek(start)
        while start < end:
            piece = stream.read(min(PIECE_BYTES, end - start))
            if not piece:
                raise InvalidRequest(f"{path} ended while it was being read", param="source")
            start += len(piece)
            yield piece
