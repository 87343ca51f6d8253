"""Log-probabilities against the textbook log-softmax."""

from __future__ import annotations

import numpy as np
import pytest

from triton_mblt.engine.logprobs import score


def log_softmax(logits):
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


@pytest.mark.parametrize("size", [5, 300, 20_000])
@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_scores_equal_log_softmax(size, spread):
    logits = (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)
    expected = log_softmax(logits)
    order = np.argsort(-logits, kind="stable")
    for token in (0, size - 1, int(order[0])):
        scored = score(logits, token, 4)
        assert scored.logprob == pytest.approx(expected[token], abs=2e-6 * max(spread, 1))
        assert scored.rank == 1 + int((expected > expected[token]).sum())
        assert [token for token, _ in scored.top] == order[:4].tolist()
        assert [value for _, value in scored.top] == pytest.approx(expected[order[:4]], abs=2e-6 * max(spread, 1))


def test_ties_are_listed_by_id_and_share_a_rank():
    scored = score(np.array([0, 2, 2, 2, 1], np.float32), 3, 2)
    assert [token for token, _ in scored.top] == [1, 2]
    assert scored.rank == 1
    assert score(np.array([0, 2, 2, 2, 1], np.float32), 4, 0).rank == 4


def test_minus_one_lists_the_whole_vocabulary():
    logits = np.array([0.5, 3.0, -1.0], np.float32)
    assert [token for token, _ in score(logits, 0, -1).top] == [1, 0, 2]
    assert sum(np.exp(value) for _, value in score(logits, 0, -1).top) == pytest.approx(1.0, abs=1e-6)
    assert len(score(logits, 0, 20).top) == 3


def test_words_that_the_model_masks_are_left_out_of_the_top():
    logits = np.array([-np.inf, 1.0, -np.inf, 0.0], np.float32)
    assert [token for token, _ in score(logits, 1, 3).top] == [1, 3]
    assert score(logits, 0, 0).logprob == -np.inf
