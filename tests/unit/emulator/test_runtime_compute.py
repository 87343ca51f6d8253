"""Compute mode through the runtime's API: real numbers, and the same poison, transfers, faults and counters."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tiny_models import reference_model, tiny_package
from twin import configure, forget, refused

from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.stats import read_stats

TEXT = [5, 30, 9, 101, 77, 7, 200]
TOLERANCE = 1e-4


class Served:
    """A launched model with its embedding table."""

    def __init__(self, package: Path) -> None:
        self.model = q.load(str(next(package.glob("*.mxq"))))
        (self.table,) = load_file(package / "model.safetensors").values()

    def run(self, *rows: tuple[list[int], int, int]) -> np.ndarray[Any, Any]:
        packed = np.concatenate([self.table[tokens] for tokens, _, _ in rows])
        params = [q.BatchParam(len(tokens), size, slot) for tokens, size, slot in rows]
        (logits,) = self.model.infer([packed[None, None]], params=params)
        return np.asarray(logits)

    def alone(self, tokens: list[int], cache_size: int = 0) -> np.ndarray[Any, Any]:
        (logits,) = self.model.infer(self.table[tokens][None, None], None, cache_size)
        return np.asarray(logits)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run", MODE="compute")
    yield
    forget()


@pytest.fixture
def served(folder: Path) -> Served:
    return Served(tiny_package("llama", folder, batch=3))


@torch.inference_mode()
def plain(tokens: list[int]) -> np.ndarray[Any, Any]:
    return np.asarray(reference_model("llama")(torch.tensor([tokens]), use_cache=False).logits[0])


def test_ranks_and_numbers_of_a_model_of_one_slot(folder: Path) -> None:
    last, every = (Served(tiny_package("llama", folder, logits=logits)) for logits in ("last", "all"))
    expected = plain(TEXT)
    assert last.alone(TEXT).shape == (1, 1, 1, expected.shape[1])
    assert np.allclose(last.alone(TEXT)[0, 0, 0], expected[-1], atol=TOLERANCE)
    every.alone(TEXT[:4])
    assert np.allclose(every.alone(TEXT[4:], 4)[0, 0], expected[4:], atol=TOLERANCE)


def test_given_outputs_are_filled(folder: Path) -> None:
    served = Served(tiny_package("llama", folder))
    out = [np.zeros((1, 1, served.alone(TEXT).shape[-1]), np.float32)]
    assert served.model.infer(served.table[TEXT][None, None], out) is None
    assert np.allclose(out[0][0, 0], plain(TEXT)[-1], atol=TOLERANCE)


def test_rows_are_independent_and_unwritten_ones_are_poison(served: Served) -> None:
    logits = served.run((TEXT[:4], 0, 0), (TEXT, 0, 2), ([1], 3, 1))
    assert np.allclose(logits[0], plain(TEXT[:4])[-1], atol=TOLERANCE)
    assert np.allclose(logits[1], plain(TEXT)[-1], atol=TOLERANCE)
    assert np.isnan(logits[2]).all()


def test_a_slot_moves_by_memory_and_by_file(served: Served, tmp_path: Path) -> None:
    served.run((TEXT, 0, 0))
    blobs = served.model.dump_cache_memory(0)
    assert [len(blob) for blob in blobs] == [info.size for info in served.model.get_cache_infos()]
    served.model.load_cache_memory(blobs, 1)
    served.model.dump_cache_memory_to(str(tmp_path), 0)
    served.model.load_cache_memory_from(str(tmp_path), 2)
    logits = served.run(([9], len(TEXT), 1), ([9], len(TEXT), 2))
    assert np.allclose(logits, plain([*TEXT, 9])[-1], atol=TOLERANCE)
    with refused("Model_NumCacheMismatched"):
        served.model.load_cache_memory(blobs[1:], 1)


def test_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    faults = [
        {"kind": "drop_append", "at_call": 2},
        {"kind": "corrupt_dump", "at_call": 1},
        {"kind": "script", "tokens": [42], "cache_id": 2},
        {"kind": "raise", "at_call": 6, "status": "Acc_NPUTimeout"},
    ]
    configure(monkeypatch, tmp_path / "run", MODE="compute", FAULTS=json.dumps(faults))
    served = Served(tiny_package("llama", folder, batch=3))
    served.run((TEXT, 0, 0))
    dropped = served.run(([9], len(TEXT), 0))
    assert np.allclose(dropped, plain([*TEXT, 9])[-1], atol=TOLERANCE)
    assert np.isnan(served.run(([8], len(TEXT) + 1, 0))).all()
    served.model.load_cache_memory(served.model.dump_cache_memory(0), 1)
    corrupt = served.run(([9], len(TEXT), 1))
    assert not np.allclose(corrupt, plain([*TEXT, 9])[-1], atol=0.1)
    assert int(served.run((TEXT, 0, 2)).argmax()) == 42
    with refused("Acc_NPUTimeout"):
        served.run((TEXT, 0, 0))


def test_counters(served: Served) -> None:
    served.run((TEXT, 0, 0), ([1], 0, 1))
    (stats,) = read_stats(os.getpid())
    assert (stats["calls"], stats["rows"], stats["tokens"]) == (1, 2, len(TEXT) + 1)
    assert stats["latest"][0]["nominal_ms"] == 0


def test_compute_and_latency_takes_the_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(
        '{"kind": "linear", "prefill_ms_per_token": 20, "decode_ms_per_token": 0, "cores": 1, "call_ms": 0}'
    )
    configure(monkeypatch, tmp_path / "run", MODE="compute+latency", PROFILE=str(profile))
    served = Served(tiny_package("llama", folder, batch=3))
    logits = served.run((TEXT[:5], 0, 0))
    served.run(([1], 5, 0))
    assert np.allclose(logits[0], plain(TEXT[:5])[-1], atol=TOLERANCE)
    (stats,) = read_stats(os.getpid())
    first, second = ((call["end_ns"] - call["start_ns"]) / 1e6 for call in stats["latest"])
    assert first >= 100
    assert second > 0


def test_damaged_weights_are_a_broken_artefact(folder: Path, tmp_path: Path) -> None:
    package = tiny_package("llama", folder)
    data = bytearray(next(package.glob("*.mxq")).read_bytes())
    data[-8] ^= 0xFF
    path = tmp_path / "damaged.mxq"
    path.write_bytes(data)
    model = q.Model(str(path))
    with refused("Model_BrokenMXQ"):
        model.launch(q.Accelerator())
