"""The emulator's own model file (`*.mxq`): its layout, how it is written and how it is read.

Owns the byte layout and everything that follows from a file's header alone (limits, cache sizes). Knows neither torch
nor the runtime's API; weights are handed out as places in the file, for whoever computes with them.

Layout, little endian:
    prologue   64 bytes: magic, format version, header length, payload offset, payload length, CRC-32 of the header
    header     JSON: limits, plain model config, and per tensor its dtype, shape, place in the payload and CRC-32
    padding    zeros up to the payload offset (a multiple of 64)
    payload    tensors one after the other, each on a multiple of 64, in the element formats of safetensors
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

MAGIC = b"MBLTEMU\x00"
VERSION = 1
ALIGN = 64
KV_ITEM_BYTES = 4  # the emulator keeps real float32 keys and values, where the hardware keeps int8
ITEM_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}

_PROLOGUE = struct.Struct("<8sIIQQI28x")
_MAX_HEADER = 64 * 1024 * 1024
_NO_CRC = "00000000"

Logits = Literal["last", "all"]
Chunks = Iterator[bytes | memoryview]


class ArtefactError(Exception):
    """The file is missing, truncated, corrupt, from another program, or inconsistent in itself."""


class TensorSpec(NamedTuple):
    """One tensor to store. `dtype` is a safetensors name: F32, F16 or BF16."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


class TensorPlace(NamedTuple):
    """One stored tensor: `offset` counts from the start of the file; `crc32` covers its bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc32: int


@dataclass(frozen=True)
class Limits:
    """What the artefact was compiled for; every number counts tokens or rows and is at least 1.

    batch: rows K of one call. max_cache: KV capacity of a slot. max_width: tokens of one call over all rows.
    row_limit: tokens of one row in one call. logits: one row of logits per row ("last") or per token ("all").
    """

    batch: int
    max_cache: int
    max_width: int
    row_limit: int
    logits: Logits


@dataclass(frozen=True)
class Artefact:
    """A checked artefact. Sizes are per model; `tensors` are places in the file at `path`, which stays closed."""

    path: str
    family: str
    batch: int
    max_cache: int
    max_width: int
    row_limit: int
    logits: Logits
    vocab: int
    hidden: int
    layers: int
    kv_heads: int
    head_dim: int
    build_id: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]


def cache_bytes(artefact: Artefact) -> tuple[int, ...]:
    """Bytes of one slot in each cache, in dump order: one cache per layer, holding its keys and then its values."""
    per_layer = 2 * artefact.kv_heads * artefact.max_cache * artefact.head_dim * KV_ITEM_BYTES
    return (per_layer,) * artefact.layers


def cache_name(layer: int) -> str:
    """The name of a layer's cache as `CacheInfo` shows it."""
    return f"layers.{layer}.kv"


def read_artefact(path: str | os.PathLike[str]) -> Artefact:
    """Check the file's frame and header (not the weights) and return its description.

    Raises ArtefactError with the reason in plain words.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as stream:
            prologue = stream.read(_PROLOGUE.size)
            header_bytes, payload_at, payload_len = _read_header(name, prologue, stream)
            actual = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise ArtefactError(f"cannot read {name}: {error.strerror or error}") from error
    if actual != payload_at + payload_len:
        raise ArtefactError(f"{name} has {actual} bytes where its header asks for {payload_at + payload_len}")
    try:
        return _parse_header(name, json.loads(header_bytes), payload_at, payload_len)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtefactError(f"{name} has a malformed header: {error!r}") from error


def write_artefact(
    path: str | os.PathLike[str],
    *,
    family: str,
    limits: Limits,
    vocab: int,
    hidden: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    config: Mapping[str, Any],
    tensors: Sequence[tuple[TensorSpec, Callable[[], Chunks]]],
) -> str:
    """Write one artefact, tensor by tensor, and return its build id (a digest of all it contains).

    Each tensor comes with a function that yields its bytes in pieces, so that memory stays small. The header is written
    last, when the checksums are known; their length is fixed. Raises ArtefactError when a tensor yields a wrong size.
    """
    described = {
        "family": family,
        "limits": {
            "batch": limits.batch,
            "max_cache": limits.max_cache,
            "max_width": limits.max_width,
            "row_limit": limits.row_limit,
            "logits": limits.logits,
        },
        "vocab": vocab,
        "hidden": hidden,
        "layers": layers,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "config": dict(config),
    }
    table, payload_len = _place(spec for spec, _ in tensors)
    blank = _encode({**described, "build_id": "0" * 32, "tensors": table})
    payload_at = _round_up(_PROLOGUE.size + len(blank))
    with Path(path).open("wb") as stream:
        stream.truncate(payload_at + payload_len)
        for entry, (spec, produce) in zip(table, tensors, strict=True):
            stream.seek(payload_at + entry["offset"])
            entry["crc32"] = _copy(stream.write, spec, produce())
        build_id = hashlib.sha256(_encode({**described, "tensors": table})).hexdigest()[:32]
        header = _encode({**described, "build_id": build_id, "tensors": table})
        stream.seek(0)
        stream.write(_PROLOGUE.pack(MAGIC, VERSION, len(header), payload_at, payload_len, zlib.crc32(header)))
        stream.write(header)
        stream.flush()
        os.fsync(stream.fileno())
    return build_id


def _read_header(name: str, prologue: bytes, stream: Any) -> tuple[bytes, int, int]:
    if len(prologue) < _PROLOGUE.size or not prologue.startswith(MAGIC):
        raise ArtefactError(f"{name} is not an artefact of the emulated NPU (a compiled .mxq for real hardware is not)")
    _, version, header_len, payload_at, payload_len, checksum = _PROLOGUE.unpack(prologue)
    if version != VERSION:
        raise ArtefactError(f"{name} has format version {version}; this emulator reads version {VERSION}")
    if header_len > _MAX_HEADER:
        raise ArtefactError(f"{name} claims a header of {header_len} bytes")
    header = stream.read(header_len)
    if len(header) != header_len or zlib.crc32(header) != checksum:
        raise ArtefactError(f"{name} is corrupt: its header fails the checksum")
    return header, payload_at, payload_len


def _parse_header(path: str, raw: dict[str, Any], payload_at: int, payload_len: int) -> Artefact:
    limits = Limits(**raw["limits"])
    sizes = {key: raw[key] for key in ("vocab", "hidden", "layers", "kv_heads", "head_dim")}
    numbers = {**sizes, **{key: value for key, value in vars(limits).items() if key != "logits"}}
    for key, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{key} is {value!r}")
    if limits.logits not in ("last", "all"):
        raise ValueError(f"logits is {limits.logits!r}")
    tensors = {}
    for entry in raw["tensors"]:
        spec = TensorSpec(entry["name"], entry["dtype"], tuple(entry["shape"]))
        if entry["offset"] < 0 or entry["offset"] + spec.nbytes > payload_len:
            raise ValueError(f"tensor {spec.name} lies outside the payload")
        place = TensorPlace(spec.dtype, spec.shape, payload_at + entry["offset"], spec.nbytes, int(entry["crc32"], 16))
        tensors[spec.name] = place
    return Artefact(
        path=path,
        family=raw["family"],
        build_id=raw["build_id"],
        config=raw["config"],
        tensors=tensors,
        **vars(limits),
        **sizes,
    )


def _place(specs: Iterator[TensorSpec]) -> tuple[list[dict[str, Any]], int]:
    table: list[dict[str, Any]] = []
    end = 0
    for spec in specs:
        offset = _round_up(end)
        table.append(
            {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "offset": offset, "crc32": _NO_CRC}
        )
        end = offset + spec.nbytes
    return table, end


def _copy(write: Callable[[bytes | memoryview], int], spec: TensorSpec, chunks: Chunks) -> str:
    crc, written = 0, 0
    for chunk in chunks:
        piece = memoryview(chunk).cast("B")
        crc = zlib.crc32(piece, crc)
        written += piece.nbytes
        write(piece)
    if written != spec.nbytes:
        raise ArtefactError(f"tensor {spec.name} gave {written} bytes, its shape asks for {spec.nbytes}")
    return f"{crc:08x}"


def _encode(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode()


def _round_up(value: int) -> int:
    return (value + ALIGN - 1) // ALIGN * ALIGN
