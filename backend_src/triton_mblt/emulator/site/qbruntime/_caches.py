"""The KV interface of a launched model: whole slots and single caches, in memory and files, natively checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from . import _describe
from ._errors import failure
from ._launched import Launched
from ._numbers import int32
from ._values import CacheInfo

Key = Literal["name", "layer_hash"]


def dump(device: Launched, cache_id: int) -> list[bytes]:
    """All caches of a slot."""
    return device.dump(_slot(device, cache_id))


def load(device: Launched, bufs: Sequence[bytes], cache_id: int) -> None:
    """All caches of a slot. Errors: Model_NumCacheMismatched, Model_BufferSizeMismatched."""
    slot, infos = _slot(device, cache_id), _describe.cache_infos(device.artefact)
    if len(bufs) != len(infos):
        raise failure("Model_NumCacheMismatched", f"expected {len(infos)} caches, got {len(bufs)}")
    blobs = [_blob(info, buf) for info, buf in zip(infos, bufs, strict=True)]
    device.load(slot, blobs)


def dump_to(device: Launched, directory: str, cache_id: int) -> None:
    """All caches of a slot as files. Error Model_FailedToFindDirectory."""
    folder = _folder(directory)
    for info, blob in zip(_describe.cache_infos(device.artefact), dump(device, cache_id), strict=True):
        _file(folder, info).write_bytes(blob)


def load_from(device: Launched, directory: str, cache_id: int) -> None:
    """All caches of a slot from files. Errors: Model_FailedToFindDirectory, Model_FailedToOpenCacheFile."""
    folder = _folder(directory)
    try:
        blobs = [_file(folder, info).read_bytes() for info in _describe.cache_infos(device.artefact)]
    except OSError as error:
        raise failure("Model_FailedToOpenCacheFile", str(error)) from error
    load(device, blobs, cache_id)


def dump_one(device: Launched, key: Key, value: str, cache_id: int) -> bytes:
    """One cache of a slot. Error Model_CacheNotFound."""
    index, _ = _find(device, key, value)
    return dump(device, cache_id)[index]


def load_one(device: Launched, buf: bytes, key: Key, value: str, cache_id: int) -> None:
    """One cache of a slot; the others stay. Errors: Model_CacheNotFound, Model_BufferSizeMismatched."""
    index, info = _find(device, key, value)
    blob = _blob(info, buf)
    with device.cache_lock:
        blobs = dump(device, cache_id)
        blobs[index] = blob
        load(device, blobs, cache_id)


def _slot(device: Launched, cache_id: int) -> int:
    slot = int32(cache_id, "cache_id")
    if not 0 <= slot < device.artefact.batch:
        raise failure("Model_InvalidBatchParam", f"cache_id {slot} is outside 0..{device.artefact.batch - 1}")
    return slot


def _blob(info: CacheInfo, buf: bytes) -> bytes:
    view = memoryview(buf)
    if view.nbytes != info.size:
        raise failure("Model_BufferSizeMismatched", f"{info.name}: expected {info.size} bytes, got {view.nbytes}")
    return buf if isinstance(buf, bytes) else view.tobytes()


def _folder(directory: str) -> Path:
    if not Path(directory).is_dir():
        raise failure("Model_FailedToFindDirectory", f"{directory} is not a directory")
    return Path(directory)


def _file(folder: Path, info: CacheInfo) -> Path:
    return folder / f"cache_{info.layer_hash}.bin"


def _find(device: Launched, key: Key, value: str) -> tuple[int, CacheInfo]:
    for index, info in enumerate(_describe.cache_infos(device.artefact)):
        if value == (info.name if key == "name" else info.layer_hash):
            return index, info
    raise failure("Model_CacheNotFound", f"no cache whose {key} is {value!r}")
