"""The compute kernel against plain transformers: chunked, ragged and mixed calls, poison, dump and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tiny_models import FAMILY_NAMES, reference_model, tiny_package

from triton_mblt.emulator.site.qbruntime._artefact import ArtefactError, cache_bytes, read_artefact
from triton_mblt.emulator.site.qbruntime._compute import ComputeKernel
from triton_mblt.emulator.site.qbruntime._kernel import Row

TOLERANCE = 1e-4


class Rig(NamedTuple):
    """A kernel, its embedding table, and the reference model of the same weights."""

    kernel: ComputeKernel
    table: np.ndarray[Any, Any]
    reference: Any

    def call(self, *rows: tuple[list[int], int, int]) -> np.ndarray[Any, Any]:
        """One call with (tokens, cache_size, cache_id) rows."""
        packed = np.concatenate([self.table[tokens] for tokens, _, _ in rows])
        return self.kernel.forward([packed], [Row(len(tokens), start, slot) for tokens, start, slot in rows])

    @torch.inference_mode()
    def plain(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Logits of every position, computed in one go by transformers."""
        return self.reference(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def make_rig(folder: Path, family: str = "llama", logits: str = "last", batch: int = 3) -> Rig:
    package = tiny_package(family, folder, batch=batch, logits="all" if logits == "all" else "last")
    (table,) = load_file(package / "model.safetensors").values()
    return Rig(ComputeKernel(read_artefact(next(package.glob("*.mxq")))), table, reference_model(family))


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 260, count).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_mixed_ragged_chunks_give_the_plain_logits_of_every_position(folder: Path, family: str) -> None:
    rig = make_rig(folder, family, logits="all")
    a, b, c = random_tokens(40, 1), random_tokens(23, 2), random_tokens(5, 3)
    first = rig.call((a[:16], 0, 2), (b[:7], 0, 0))
    second = rig.call((b[7:8], 7, 0), (c, 0, 1), (a[16:31], 16, 2))
    third = rig.call((a[31:], 31, 2), (b[8:], 8, 0))
    got_a = np.concatenate([first[:16], second[6:], third[:9]])
    got_b = np.concatenate([first[16:], second[:1], third[9:]])
    assert np.abs(got_a - rig.plain(a)).max() < TOLERANCE
    assert np.abs(got_b - rig.plain(b)).max() < TOLERANCE
    assert np.abs(second[1:6] - rig.plain(c)).max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_last_only_artefact_gives_one_row_per_row(folder: Path, family: str) -> None:
    rig = make_rig(folder, family)
    a, b = random_tokens(12, 4), random_tokens(3, 5)
    got = rig.call((a, 0, 1), (b, 0, 0))
    assert got.shape == (2, rig.table.shape[0])
    assert got.dtype == np.float32
    assert np.abs(got - np.stack([rig.plain(a)[-1], rig.plain(b)[-1]])).max() < TOLERANCE


def test_rewinding_a_slot_overwrites_its_tail(folder: Path) -> None:
    rig = make_rig(folder)
    text, other = random_tokens(20, 6), random_tokens(4, 7)
    rig.call((text, 0, 0))
    got = rig.call((other, 10, 0))
    assert np.abs(got[0] - rig.plain(text[:10] + other)[-1]).max() < TOLERANCE


def test_positions_never_written_give_nan_in_that_row_only(folder: Path) -> None:
    rig = make_rig(folder)
    text = random_tokens(9, 8)
    got = rig.call((text[8:], 8, 0), (text, 0, 1))
    assert np.isnan(got[0]).all()
    assert not np.isnan(got[1]).any()
    assert np.isnan(rig.call((text[5:], 10, 1))).all(), "a gap of one position must show"


def test_a_dumped_slot_continues_in_another_slot_and_keeps_its_poison(folder: Path) -> None:
    rig = make_rig(folder)
    text = random_tokens(18, 9)
    rig.call((text[:17], 0, 0))
    blobs = rig.kernel.dump(0)
    rig.call((random_tokens(30, 10), 0, 2))
    rig.kernel.load(2, blobs)
    got = rig.call((text[17:], 17, 2))
    assert np.abs(got[0] - rig.plain(text)[-1]).max() < TOLERANCE
    assert np.isnan(rig.call((text[:1], 25, 2))).all(), "loading must not leave the slot's older tail readable"


def test_dumps_have_the_sizes_the_artefact_promises(folder: Path) -> None:
    package = tiny_package("qwen3", folder, batch=2)
    artefact = read_artefact(next(package.glob("*.mxq")))
    blobs = ComputeKernel(artefact).dump(1)
    assert tuple(len(blob) for blob in blobs) == cache_bytes(artefact)
    assert np.isnan(np.frombuffer(blobs[0], dtype=np.float32)).all()


def test_inputs_that_may_not_be_written_are_read(folder: Path) -> None:
    rig = make_rig(folder)
    packed = rig.table[[5, 6, 7]]
    packed.flags.writeable = False
    got = rig.kernel.forward([packed], [Row(3, 0, 0)])
    assert np.abs(got[0] - rig.plain([5, 6, 7])[-1]).max() < TOLERANCE


def test_a_damaged_weight_is_refused(folder: Path, tmp_path: Path) -> None:
    package = tiny_package("llama", folder)
    path = next(package.glob("*.mxq"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    broken = tmp_path / "broken.mxq"
    broken.write_bytes(data)
    with pytest.raises(ArtefactError, match="fails its checksum"):
        ComputeKernel(read_artefact(broken))
