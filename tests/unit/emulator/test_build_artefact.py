"""The artefact format: what is written comes back, and anything else is recognised and named."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from triton_mblt.emulator.site.qbruntime._artefact import (
    ArtefactError,
    Limits,
    TensorSpec,
    cache_bytes,
    read_artefact,
    write_artefact,
)

WEIGHTS = {"a.weight": bytes(range(24)), "b.weight": bytes(range(100, 112))}


def write(path: Path, tag: str = "x") -> str:
    return write_artefact(
        path,
        family="llama",
        limits=Limits(batch=2, max_cache=32, max_width=16, row_limit=8, logits="all"),
        vocab=11,
        hidden=4,
        layers=3,
        kv_heads=2,
        head_dim=5,
        config={"model_type": "llama", "tag": tag},
        tensors=[
            (TensorSpec("a.weight", "F32", (2, 3)), lambda: iter([WEIGHTS["a.weight"][:10], WEIGHTS["a.weight"][10:]])),
            (TensorSpec("b.weight", "BF16", (6,)), lambda: iter([WEIGHTS["b.weight"]])),
        ],
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "m.mxq")
    return tmp_path / "m.mxq"


def test_what_is_written_comes_back(path: Path) -> None:
    artefact = read_artefact(path)
    assert (artefact.batch, artefact.max_cache, artefact.max_width, artefact.row_limit) == (2, 32, 16, 8)
    assert (artefact.logits, artefact.vocab, artefact.hidden, artefact.layers) == ("all", 11, 4, 3)
    assert artefact.config == {"model_type": "llama", "tag": "x"}
    data = path.read_bytes()
    for name, expected in WEIGHTS.items():
        place = artefact.tensors[name]
        stored = data[place.offset : place.offset + place.nbytes]
        assert stored == expected
        assert zlib.crc32(stored) == place.crc32
        assert place.offset % 64 == 0


def test_cache_sizes_follow_from_the_header(path: Path) -> None:
    # keys and values x 2 heads x 32 positions x 5 numbers x 4 bytes, three layers
    assert cache_bytes(read_artefact(path)) == (2 * 2 * 32 * 5 * 4,) * 3


def test_the_build_id_names_the_content(tmp_path: Path) -> None:
    first, again, other = (write(tmp_path / name, tag) for name, tag in (("1", "x"), ("2", "x"), ("3", "y")))
    assert first == again != other
    assert read_artefact(tmp_path / "1").build_id == first


def test_every_truncation_is_recognised(path: Path) -> None:
    data = path.read_bytes()
    for length in (*range(0, 70), len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ArtefactError):
            read_artefact(path)


def test_every_flipped_bit_of_prologue_and_header_is_recognised(path: Path) -> None:
    data = path.read_bytes()
    header_end = data.rindex(b"}") + 1
    meaningful = [*range(36), *range(64, header_end)]  # the prologue ends in 28 unused bytes
    for index in meaningful:
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(ArtefactError):
            read_artefact(path)


def test_trailing_bytes_are_recognised(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ArtefactError, match="bytes where its header asks for"):
        read_artefact(path)


@pytest.mark.parametrize("content", [b"", b"MBLT", b"\x7fELF" + bytes(4096), b"GGUF" + bytes(4096), b"MXQ" * 100])
def test_other_programs_files_are_recognised(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "foreign.mxq").write_bytes(content)
    with pytest.raises(ArtefactError, match="not an artefact of the emulated NPU"):
        read_artefact(tmp_path / "foreign.mxq")


def test_missing_files_and_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="No such file"):
        read_artefact(tmp_path / "none.mxq")
    with pytest.raises(ArtefactError, match="directory"):
        read_artefact(tmp_path)


def test_a_tensor_of_the_wrong_size_is_refused_when_written(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"t gave 3 bytes, its shape asks for 4"):
        write_artefact(
            tmp_path / "m.mxq", family="llama", limits=Limits(1, 8, 8, 8, "last"), vocab=1, hidden=1, layers=1,
            kv_heads=1, head_dim=1, config={}, tensors=[(TensorSpec("t", "F32", (1,)), lambda: iter([b"abc"]))],
        )  # fmt: skip
