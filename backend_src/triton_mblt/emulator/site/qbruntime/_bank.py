"""Logits to play in latency mode: curves of recorded SmolLM2 steps for any vocabulary, and a flat adversarial set.

A recorded curve is a step's logits sorted from high to low, kept at some ranks (see `record_logits.py`). For another
vocabulary size the best words keep their logits and a longer tail keeps its mass in all, so the entropy
stays that of the recording.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

_FILE = Path(__file__).resolve().parent / "data" / "logits_smollm2.npz"
_SEED = 20240613
_BEST = 18.0  # a usual best logit; only differences matter to a sampler
_FLAT_ROWS = 4
_FLAT_SPREAD = 1e-3

Bank = npt.NDArray[np.float32]


@lru_cache(maxsize=2)
def make_bank(kind: str, vocab: int) -> Bank:
    """Logits [rows, vocab] of the kind "recorded" or "flat", not to be written; the same in every process."""
    rng = np.random.default_rng(_SEED)
    if kind == "flat":
        bank: Bank = rng.uniform(0.0, _FLAT_SPREAD, size=(_FLAT_ROWS, vocab)).astype(np.float32)
    else:
        bank = recorded_curves(vocab)
        for row in bank:
            rng.shuffle(row)
    bank.flags.writeable = False
    return bank


def recorded_curves(vocab: int) -> Bank:
    """The recorded steps as logits [steps, vocab], best word first."""
    with np.load(_FILE) as stored:
        points = stored["curves"].astype(np.float64)
        ranks, recorded = stored["ranks"], int(stored["vocab"])
    head = int(np.argmin(np.diff(ranks) == 1)) if np.any(np.diff(ranks) != 1) else len(ranks)
    wanted = np.arange(vocab, dtype=np.float64)
    stretch = (recorded - head) / max(1, vocab - head)
    source = np.where(wanted < head, wanted, head + (wanted - head + 0.5) * stretch - 0.5)
    # A tail of n > m recorded words: each is worth m/n of a recorded one. A shorter tail stays below the head instead.
    share = np.where(wanted < head, 0.0, min(0.0, np.log(stretch)))
    curves = np.stack([np.interp(source, ranks, curve) for curve in points])
    bank: Bank = (curves + share + _BEST).astype(np.float32)
    return bank
