"""The arithmetic of choosing one word from one row of logits, without sorting the vocabulary.

Each step finds a small set that surely holds the answer by passes that run at memory speed, then is exact on that set.
Knows arrays only: no requests, no randomness (the uniform number is an argument).

Ties: top-k keeps every word that equals the k-th largest logit; the nucleus of top-p takes words by falling weight
and among equal weights by rising id. Rows hold no NaN and no +inf (the caller checks), -inf means masked.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

_COLUMNS = 4096  # a row of column maxima stays in the L1 cache
_MAX_COLUMN_K = 1024
_SMALL = 4096  # sorting or summing this many is cheaper than avoiding it
_HEAD = 512
_SAMPLE = 2048
_SAMPLE_SLACK = 0.04  # at least 3.6 standard errors of a share estimated from _SAMPLE words
_DRAW_BLOCK = 1024


class Candidates(NamedTuple):
    """Words that may be drawn: their ids in rising order (None: every word) and weights >= 0, the largest being 1."""

    ids: Ids | None
    weights: Floats


def choose(logits: Floats, peak: float, temperature: float, top_k: int, top_p: float, min_p: float, draw: float) -> int:
    """The id drawn from `logits` [V] by the uniform number `draw` in [0, 1).

    `peak` is the largest logit (finite), `temperature` > 0, `top_k` 0 means all words, `top_p` is in (0, 1], `min_p` in
    [0, 1].
    """
    candidates = find_candidates(logits, peak, temperature, top_k, top_p, min_p)
    index = invert(candidates.weights, draw)
    return index if candidates.ids is None else int(candidates.ids[index])


def find_candidates(
    logits: Floats, peak: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> Candidates:
    """The words that min_p, top_k and top_p keep (one after the other), with weights proportional to probability.

    A word whose weight is 0 is not kept.
    """
    ids: Ids | None = None
    if 0 < top_k < logits.size:
        ids = top_ids(logits, top_k)
    elif min_p > 0.0:
        # A little below the true limit; the exact test is on the weights.
        limit = peak + temperature * (math.log(min_p) - 1e-3) - 1e-6 * abs(peak)
        ids = np.flatnonzero(logits >= limit)
        if ids.size > logits.size // 8:  # gathering that many costs more than weighing all
            ids = None
    weights = softmax_weights(logits if ids is None else logits[ids], peak, temperature)
    if min_p > 0.0:
        weights *= weights >= np.float32(min_p)
    if top_p < 1.0:
        return _nucleus(Candidates(ids, weights), top_p)
    return Candidates(ids, weights)


def softmax_weights(logits: Floats, peak: float, temperature: float) -> Floats:
    """exp((logits - peak) / temperature): the softmax without its division."""
    scaled = logits - np.float32(peak)
    if temperature != 1.0:
        scaled /= np.float32(temperature)
    weights: Floats = np.exp(scaled, out=scaled)
    return weights


def top_ids(values: Floats, k: int) -> Ids:
    """Ids, rising, of all values that are at least the k-th largest and above -inf; ties can make it more than k."""
    floor = _at_most_kth_largest(values, k)
    ids: Ids = np.flatnonzero(values >= floor) if floor > -np.inf else np.flatnonzero(values > -np.inf)
    if ids.size > k:
        found = values[ids]
        ids = ids[found >= np.partition(found, found.size - k)[found.size - k]]
    return ids


def _at_most_kth_largest(values: Floats, k: int) -> float:
    """A lower bound of the k-th largest value, usually close: the k-th largest of column maxima (k different words)."""
    rows = values.size // _COLUMNS
    if k > _MAX_COLUMN_K or rows < 2:
        return float(np.partition(values, values.size - k)[values.size - k])
    maxima = values[: rows * _COLUMNS].reshape(rows, _COLUMNS).max(axis=0)
    return float(np.partition(maxima, _COLUMNS - k)[_COLUMNS - k])


def _nucleus(candidates: Candidates, top_p: float) -> Candidates:
    """The shortest run of words, by falling weight, whose share of the weight is at least `top_p`."""
    ids, weights = candidates
    total = float(weights.sum())
    target = top_p * total
    if weights.size > _SMALL and target < _HEAD:  # no weight is above 1: the head cannot weigh more than _HEAD
        head = top_ids(weights, _HEAD)
        head_weights = weights[head]
        if float(head_weights.sum()) >= target:
            ids, weights = head if ids is None else ids[head], head_weights
    floor, above = _nucleus_floor(weights, total, target)
    # Of the words that weigh exactly `floor` only as many as it takes, the lowest ids first.
    ties = np.flatnonzero(weights == floor)
    needed = max(math.ceil((target - above) / floor), 1)
    kept = weights * (weights >= floor)
    kept[ties[needed:]] = 0.0
    return Candidates(ids, kept)


def _nucleus_floor(weights: Floats, total: float, target: float) -> tuple[float, float]:
    """The smallest weight that the nucleus of mass `target` of `total` needs, and the mass of all larger weights."""
    if weights.size > _SMALL:
        high, low = _bracket(weights, target / total)
        above = float((weights * (weights > high)).sum())
        band = weights[np.flatnonzero((weights <= high) & (weights >= low))]
        if above < target <= above + float(band.sum(dtype=np.float64)):
            return _sorted_floor(band, above, target)
    return _sorted_floor(weights, 0.0, target)


def _bracket(weights: Floats, share: float) -> tuple[np.float32, np.float32]:
    """Two weights, the larger first, between which the nucleus of `share` probably ends: guessed by sampling."""
    sample = np.sort(weights[:: weights.size // _SAMPLE])[::-1]
    mass = np.cumsum(sample, dtype=np.float64)
    first, last = np.searchsorted(mass, mass[-1] * np.array([share - _SAMPLE_SLACK, share + _SAMPLE_SLACK]))
    return sample[first], sample[last] if last < sample.size else np.float32(0.0)


def _sorted_floor(weights: Floats, above: float, target: float) -> tuple[float, float]:
    """As `_nucleus_floor`, by sorting `weights`; `above` is the mass of larger weights that are not among them."""
    falling = np.sort(weights)[::-1]
    mass = above + np.cumsum(falling, dtype=np.float64)
    at = int(np.searchsorted(mass, min(target, float(mass[-1]))))  # rounding may put the target past the end
    floor = falling[at]
    first = falling.size - int(np.searchsorted(falling[::-1], floor, side="right"))
    return float(floor), float(mass[first - 1]) if first else above


def invert(weights: Floats, draw: float) -> int:
    """The index at which the running share of `weights` passes `draw` in [0, 1). Never one of weight 0."""
    if weights.size <= _SMALL:
        mass = np.cumsum(weights, dtype=np.float64)
        return _passing(mass, draw * float(mass[-1]))
    sums = np.add.reduceat(weights, np.arange(0, weights.size, _DRAW_BLOCK))
    blocks = np.cumsum(sums, dtype=np.float64)
    goal = draw * float(blocks[-1])
    block = _passing(blocks, goal)
    start = block * _DRAW_BLOCK
    inner = np.cumsum(weights[start : start + _DRAW_BLOCK], dtype=np.float64)
    return start + _passing(inner, goal - (float(blocks[block - 1]) if block else 0.0))


def _passing(mass: npt.NDArray[np.float64], goal: float) -> int:
    """The first index whose running mass exceeds `goal`; the last that adds mass if rounding put `goal` at the end."""
    index = int(np.searchsorted(mass, goal, side="right"))
    return index if index < mass.size else int(np.searchsorted(mass, mass[-1], side="left"))
