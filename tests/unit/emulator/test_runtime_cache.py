"""Slots of the emulated runtime moved out and in: whole, by file, one cache at a time, to other slots and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import MAX_CACHE, VOCAB, artefact, configure, forget, refused, run

from triton_mblt.emulator.site import qbruntime as q

TEXT = [5, 3, 9, 1, 7, 7, 2, 30, 41, 8]


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run")
    yield
    forget()


@pytest.fixture
def model(tmp_path: Path) -> q.Model:
    return q.load(artefact(tmp_path, batch=4))


def test_cache_infos(tmp_path: Path) -> None:
    for k, kind in ((1, q.CacheType.Default), (4, q.CacheType.Batch)):
        infos = q.Model(artefact(tmp_path, batch=k)).get_cache_infos()
        assert [info.num_batches for info in infos] == [k] * 3
        assert {info.cache_type for info in infos} == {kind}
        assert len({info.name for info in infos}) == len({info.layer_hash for info in infos}) == 3


def test_a_dump_has_the_size_of_the_slot(model: q.Model) -> None:
    for written in (0, 1, 12):
        if written:
            run(model, ([1] * written, 0, 2))
        assert [len(blob) for blob in model.dump_cache_memory(2)] == [info.size for info in model.get_cache_infos()]
        assert all(isinstance(blob, bytes) for blob in model.dump_cache_memory(2))


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 12), rest=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), data=st.data())
def test_a_restored_slot_goes_on_like_the_dumped_one(length: int, rest: list[int], data: Any) -> None:
    model = MODELS.setdefault("one", q.load(PATHS["one"]))
    source, target = data.draw(st.permutations(range(4)))[:2]
    text = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length))
    run(model, (text, 0, source))
    blobs = model.dump_cache_memory(source)
    expected = run(model, (rest, length, source))
    run(model, ([1, 2, 3], 0, target))
    model.load_cache_memory(blobs, target)
    assert np.array_equal(run(model, (rest, length, target)), expected)


PATHS: dict[str, str] = {}
MODELS: dict[str, q.Model] = {}


@pytest.fixture(autouse=True)
def one_model(tmp_path: Path) -> Any:
    PATHS["one"] = artefact(tmp_path, batch=4)
    yield
    MODELS.clear()


def test_a_dump_is_valid_only_up_to_the_tokens_written(model: q.Model) -> None:
    run(model, (TEXT[:5], 0, 0))
    run(model, (TEXT, 0, 1))
    model.load_cache_memory(model.dump_cache_memory(0), 1)
    assert np.isnan(run(model, ([1], len(TEXT), 1))).all()
    assert not np.isnan(run(model, ([1], 5, 1))).any()


def test_an_empty_slot_can_be_dumped_and_empties_another(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    model.load_cache_memory(model.dump_cache_memory(3), 0)
    assert np.isnan(run(model, ([1], 1, 0))).all()


def test_a_dump_does_not_follow_later_writes(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    before = model.dump_cache_memory(0)
    copies = [bytes(bytearray(blob)) for blob in before]
    run(model, (TEXT[::-1], 0, 0))
    assert before == copies


def test_another_model_of_the_same_artefact_takes_a_dump(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    other = q.load(PATHS["one"])
    other.load_cache_memory([bytearray(blob) for blob in model.dump_cache_memory(0)], 2)  # type: ignore[misc]
    assert np.array_equal(run(other, ([4], len(TEXT), 2)), run(model, ([4], len(TEXT), 0)))


def test_foreign_bytes_are_poison(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    model.load_cache_memory([b"\x07" * info.size for info in model.get_cache_infos()], 0)
    assert np.isnan(run(model, ([4], 1, 0))).all()


def test_native_checks_of_dump_and_load(model: q.Model) -> None:
    blobs = model.dump_cache_memory()
    for slot in (-1, 4):
        with refused("Model_InvalidBatchParam"):
            model.dump_cache_memory(slot)
        with refused("Model_InvalidBatchParam"):
            model.load_cache_memory(blobs, slot)
    with refused("Model_NumCacheMismatched"):
        model.load_cache_memory(blobs[:-1])
    with refused("Model_BufferSizeMismatched"):
        model.load_cache_memory([*blobs[:-1], blobs[-1][:-1]])
    with refused("Model_NoCache"):
        model.reset_fixed_tail_cache_memory()
    for edit in (lambda: model.filter_cache_tail(1, 1, [True]), lambda: model.move_cache_tail(1, 1, 1)):
        with refused("NotImplemented"):
            edit()


def test_files(model: q.Model, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir()
    run(model, (TEXT, 0, 1))
    model.dump_cache_memory_to(str(folder), 1)
    assert {path.name for path in folder.iterdir()} == {f"cache_{i.layer_hash}.bin" for i in model.get_cache_infos()}
    model.load_cache_memory_from(str(folder), 3)
    assert np.array_equal(run(model, ([4], len(TEXT), 3)), run(model, ([4], len(TEXT), 1)))
    broken = next(folder.iterdir())
    broken.write_bytes(b"short")
    with refused("Model_BufferSizeMismatched"):
        model.load_cache_memory_from(str(folder), 3)
    broken.unlink()
    with refused("Model_FailedToOpenCacheFile"):
        model.load_cache_memory_from(str(folder), 3)
    with refused("Model_FailedToFindDirectory"):
        model.dump_cache_memory_to(str(tmp_path / "missing"))
    with refused("Model_FailedToFindDirectory"):
        model.load_cache_memory_from(str(tmp_path / "missing"))


def test_one_cache_at_a_time(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    expected = run(model, ([4], len(TEXT), 0))
    run(model, (TEXT[:3], 0, 1))
    for number, info in enumerate(model.get_cache_infos()):
        if number % 2:
            blob = model.dump_cache_memory_by_name(info.name, 0)
            model.load_cache_memory_by_name(blob, info.name, 1)
        else:
            blob = model.dump_cache_memory_by_layer_hash(info.layer_hash, 0)
            model.load_cache_memory_by_layer_hash(blob, info.layer_hash, 1)
        assert len(blob) == info.size
        with refused("Model_BufferSizeMismatched"):
            model.load_cache_memory_by_name(blob[1:], info.name, 1)
    assert np.array_equal(run(model, ([4], len(TEXT), 1)), expected)
    for use in (
        lambda: model.dump_cache_memory_by_name("nothing"),
        lambda: model.dump_cache_memory_by_layer_hash("nothing"),
        lambda: model.load_cache_memory_by_name(b"", "nothing"),
        lambda: model.load_cache_memory_by_layer_hash(b"", "nothing"),
    ):
        with refused("Model_CacheNotFound"):
            use()


def test_slots_are_made_when_they_are_used(tmp_path: Path) -> None:
    """K slots of a long cache cost nothing until a token is in them."""
    model = q.load(artefact(tmp_path, batch=4, max_cache=1 << 20))
    run(model, ([1], 0, 0))
    assert model._device is not None
    assert list(model._device._kernel._slots) == [0]  # type: ignore[attr-defined]
    assert MAX_CACHE < 1 << 20
