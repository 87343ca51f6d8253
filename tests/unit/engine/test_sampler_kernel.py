"""The candidate sets against a full sort, and the draw against exact shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from triton_mblt.engine import sampler_kernel as kernel

TOLERANCE = 1e-5  # of the total weight: the kernel adds float32 weights, the reference float64 ones


def kept_ids(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The ids that the kernel keeps, their shares checked against an exact softmax over them."""
    found = kernel.find_candidates(logits, float(logits.max()), temperature, top_k, top_p, min_p)
    ids = np.arange(logits.size) if found.ids is None else found.ids
    assert (np.diff(ids) > 0).all()
    kept, weights = ids[found.weights > 0], found.weights[found.weights > 0].astype(np.float64)
    shares = np.exp((logits[kept].astype(np.float64) - float(logits.max())) / temperature)
    assert np.allclose(weights / weights.sum(), shares / shares.sum(), rtol=1e-4, atol=1e-12)
    return set(kept.tolist())


def full_sort(logits, temperature, top_k, top_p, min_p, slack):
    """What a full sort keeps; `slack` moves the limits of top_p and min_p outwards (or inwards) by a share."""
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max()) / temperature)
    order = np.lexsort((np.arange(wide.size), -wide))
    keep = weights[order] >= min_p * (1 - slack)
    if 0 < top_k < wide.size:
        keep &= wide[order] >= wide[order][top_k - 1]
    ordered = np.where(keep, weights[order], 0.0)
    if top_p < 1.0:
        before = np.cumsum(ordered) - ordered
        keep &= before < top_p * ordered.sum() * (1 + slack)
    return {int(token) for token, ok, weight in zip(order, keep, ordered, strict=True) if ok and weight > 1e-38}


def assert_as_full_sort(logits, temperature, top_k, top_p, min_p):
    kept = kept_ids(logits, temperature, top_k, top_p, min_p)
    assert full_sort(logits, temperature, top_k, top_p, min_p, -TOLERANCE) <= kept
    assert kept <= full_sort(logits, temperature, top_k, top_p, min_p, TOLERANCE)


# A coarse grid makes many ties, and keeps distinct logits distinct after exp in float32.
levels = st.integers(-200, 200).map(lambda n: n / 16)
small_rows = st.lists(st.one_of(levels, st.just(-np.inf)), min_size=1, max_size=80)
temperatures = st.sampled_from([0.25, 0.5, 0.8, 1.0, 1.7])


@given(small_rows, temperatures, st.integers(0, 90), st.floats(0.01, 1.0), st.sampled_from([0.0, 0.02, 0.3, 1.0]))
@settings(max_examples=300, deadline=None)
def test_small_rows_keep_what_a_full_sort_keeps(values, temperature, top_k, top_p, min_p):
    logits = np.array(values, dtype=np.float32)
    assume(np.isfinite(logits.max()))
    assert_as_full_sort(logits, temperature, top_k, top_p, min_p)


@given(st.integers(1, 60), st.integers(1, 80))
@settings(max_examples=100, deadline=None)
def test_top_k_of_equal_logits_keeps_all_ties(top_k, size):
    logits = np.array([1.0, 2.0] * size, dtype=np.float32)
    best = set(range(1, 2 * size, 2))
    assert kept_ids(logits, top_k=top_k) == (best if top_k <= size else set(range(2 * size)))


def peaked(rng, size):
    logits = rng.integers(-64, 64, size) / 16
    logits[rng.integers(size, size=30)] += 8
    return logits


LARGE_ROWS = {
    "peaked": peaked,
    "two_levels": lambda rng, size: rng.integers(0, 2, size) * 2.0,
    "flat": lambda rng, size: rng.integers(0, 1000, size) / 4096,
    "all_equal": lambda rng, size: np.full(size, 3.0),
    "rising": lambda rng, size: np.arange(size) / 2048,
    "falling": lambda rng, size: -np.arange(size) / 2048,
    "wide": lambda rng, size: rng.integers(-4000, 4000, size) / 16,
    "mostly_masked": lambda rng, size: np.where(rng.random(size) < 0.999, -np.inf, rng.integers(0, 50, size) / 8),
    # The likely words all fall in one column of the maxima and between the sampled words.
    "one_column": lambda rng, size: np.where(np.arange(size) % 4096 == 1, 9.0, rng.integers(0, 16, size) / 8),
    "only_in_sample": lambda rng, size: rng.integers(0, np.where(np.arange(size) % (size // 2048), 2, 40), size) / 8,
    "not_in_sample": lambda rng, size: np.where(np.arange(size) % (size // 2048), rng.integers(0, 64, size) / 8, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("size", [8192, 12_289, 49_152])
@pytest.mark.parametrize("kind", sorted(LARGE_ROWS))
def test_large_rows_keep_what_a_full_sort_keeps(kind, size):
    logits = LARGE_ROWS[kind](np.random.default_rng(size), size).astype(np.float32)
    logits[5] = logits[logits > -np.inf].max()  # never masked altogether
    for temperature, top_k, top_p, min_p in [
        (0.8, 50, 0.9, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 0, 0.02, 0.0), (0.5, 0, 0.999, 0.0), (1.0, 1000, 1.0, 0.0),
        (1.0, 5000, 0.5, 0.0), (1.7, 0, 1.0, 0.07), (1.0, 0, 0.6, 0.013), (1.0, 40, 0.7, 0.3), (1.0, 0, 0.5, 0.0),
    ]:  # fmt: skip
        assert_as_full_sort(logits, temperature, top_k, top_p, min_p)


def test_the_nucleus_takes_the_lowest_ids_of_a_tie():
    logits = np.zeros(8, np.float32)
    assert kept_ids(logits, top_p=0.5) == {0, 1, 2, 3}
    assert kept_ids(logits, top_p=0.51) == {0, 1, 2, 3, 4}
    large = np.zeros(8192, np.float32)
    assert kept_ids(large, top_p=0.25) == set(range(2048))


def test_the_nucleus_is_the_shortest_run_that_reaches_its_share():
    logits = np.log(np.array([0.1, 0.5, 0.05, 0.25, 0.1], dtype=np.float32))
    assert kept_ids(logits, top_p=0.49) == {1}
    assert kept_ids(logits, top_p=0.6) == {1, 3}
    assert kept_ids(logits, top_p=0.8) == {0, 1, 3}
    assert kept_ids(logits, top_p=1e-9) == {1}


@pytest.mark.parametrize("size", [1, 2, 7, 300, 4096, 4097, 10_000])
def test_the_draw_gives_every_word_its_exact_share(size):
    weights = np.random.default_rng(size).random(size).astype(np.float32) ** 4
    weights[:: max(size // 3, 2)] = 0.0
    weights[size // 2] = 1.0
    grid = 40_000
    step = max(grid // 4000, 1) if size > 1000 else 1
    draws = np.arange(0, grid, step) + 0.5
    hits = np.bincount([kernel.invert(weights, draw / grid) for draw in draws], minlength=size)
    assert (hits[weights == 0] == 0).all()
    expected = weights.astype(np.float64) / weights.sum(dtype=np.float64) * draws.size
    # The hits of one word are the points of a regular grid inside an interval of its length.
    assert np.abs(hits - expected).max() <= 1.01


@pytest.mark.parametrize("size", [3, 5000])
def test_the_ends_of_the_draw_never_hit_a_masked_word(size):
    weights = np.zeros(size, np.float32)
    weights[1] = 1e-30
    for draw in (0.0, 0.5, 1 - 2**-53):
        assert kernel.invert(weights, draw) == 1


def test_top_ids_lists_no_masked_word_and_all_ties():
    values = np.array([1, -np.inf, 3, 3, 2, -np.inf], dtype=np.float32)
    assert kernel.top_ids(values, 1).tolist() == [2, 3]
    assert kernel.top_ids(values, 3).tolist() == [2, 3, 4]
    assert kernel.top_ids(values, 5).tolist() == [0, 2, 3, 4]
