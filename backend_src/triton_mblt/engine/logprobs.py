"""Log-probabilities of words: the log-softmax of raw logits, before masks, penalties and temperature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triton_mblt.core.sampling_params import ALL_WORDS
from triton_mblt.engine.sampler_kernel import softmax_weights, top_ids

Floats = npt.NDArray[np.float32]


class Scored(NamedTuple):
    """`rank` is 1 plus the number of words that are more likely. `top` holds (id, logprob), the likeliest first."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def log_total(logits: Floats, peak: float) -> float:
    """log of the sum of exp(logits) over [V]; `peak` is the largest logit."""
    return peak + float(np.log(softmax_weights(logits, peak, 1.0).sum(dtype=np.float64)))


def score(logits: Floats, token: int, n_top: int, peak: float | None = None) -> Scored:
    """The log-probability of `token` in raw `logits` [V], with the `n_top` likeliest words (-1: all words).

    Equal words are listed by rising id. `peak` saves a pass when the largest logit is known.
    """
    highest = float(logits.max()) if peak is None else peak
    total = log_total(logits, highest)
    chosen = logits[token]
    rank = 1 + int(np.count_nonzero(logits > chosen))
    return Scored(float(chosen) - total, rank, _top(logits, total, n_top))


def _top(logits: Floats, total: float, n_top: int) -> tuple[tuple[int, float], ...]:
    if n_top == 0:
        return ()
    if n_top == ALL_WORDS or n_top >= logits.size:
        ids: npt.NDArray[np.intp] = np.arange(logits.size)
    else:
        ids = top_ids(logits, n_top)
    order = np.argsort(-logits[ids], kind="stable")
    ids = ids[order] if n_top == ALL_WORDS else ids[order[:n_top]]
    return tuple(zip(ids.tolist(), (logits[ids].astype(np.float64) - total).tolist(), strict=True))
