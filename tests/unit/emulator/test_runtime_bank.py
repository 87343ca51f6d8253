"""The logits that latency mode plays: those of recorded steps for any vocabulary, and the flat set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twin import artefact, configure, forget, run

from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime._bank import make_bank, recorded_curves


def entropies(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of each row, in nats."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(-((weights / total) * (shifted - np.log(total))).sum(axis=1))


def test_curves_fall_and_are_varied() -> None:
    curves = recorded_curves(49152)
    assert curves.shape[0] >= 32
    assert (np.diff(curves, axis=1) <= 0).all()
    found = entropies(curves)
    assert found.min() < 0.1
    assert found.max() > 3


@pytest.mark.parametrize("vocab", [32000, 128256, 151936])
def test_the_entropy_stays_for_other_vocabularies(vocab: int) -> None:
    change = entropies(recorded_curves(vocab)) - entropies(recorded_curves(49152))
    assert np.abs(change).max() < 0.35


@pytest.mark.parametrize("vocab", [2, 97, 512, 513, 1000])
def test_small_vocabularies_work(vocab: int) -> None:
    curves = recorded_curves(vocab)
    assert curves.shape[1] == vocab
    assert np.isfinite(curves).all()


def test_the_bank_is_the_same_every_time_and_not_sorted() -> None:
    first = make_bank("recorded", 1000)
    make_bank.cache_clear()
    again = make_bank("recorded", 1000)
    assert first is not again
    assert np.array_equal(first, again)
    assert np.array_equal(np.sort(first, axis=1)[:, ::-1], recorded_curves(1000))
    assert len(set(first.argmax(axis=1).tolist())) > 10


def test_the_flat_set_has_the_largest_entropy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configure(monkeypatch, tmp_path / "run", LOGITS="flat")
    try:
        model = q.load(artefact(tmp_path, batch=4, vocab=500))
        logits = np.concatenate([run(model, ([token], 0, 0)) for token in range(5)])
    finally:
        forget()
    assert entropies(logits) == pytest.approx(np.log(500), abs=1e-4)
    assert len(np.unique(logits[0])) > 450
