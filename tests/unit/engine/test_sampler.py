"""The whole step: distribution, order of operations, independence of neighbours, faults of single rows."""

from __future__ import annotations

import numpy as np
import pytest

from triton_mblt.core.errors import InvalidRequest, NpuFault
from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.engine.philox import Draws
from triton_mblt.engine.sampler import RowSampler, Sampled, sample


def make(vocab, prompt=(), eos=(), bad=(), seed=1, want_logprob=False, **fields):
    return RowSampler.create(SamplingParams(**fields), prompt, vocab, frozenset(eos), bad, seed, want_logprob)


def token_of(row, logits):
    (outcome,) = sample(np.asarray(logits, dtype=np.float32)[None], [row])
    assert isinstance(outcome, Sampled)
    return outcome.token


def generate(row, logits, steps):
    """Tokens of `steps` steps that all see the same logits."""
    tokens = []
    for _ in range(steps):
        tokens.append(token_of(row, logits))
        row.accept(tokens[-1])
    return tokens


LOGITS = np.log(np.array([0.30, 0.05, 0.20, 0.02, 0.25, 0.10, 0.08], dtype=np.float64)).astype(np.float32)


@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({}, [0.30, 0.05, 0.20, 0.02, 0.25, 0.10, 0.08]),
        ({"temperature": 0.5}, [0.09, 0.0025, 0.04, 0.0004, 0.0625, 0.01, 0.0064]),
        ({"top_k": 3}, [0.30, 0, 0.20, 0, 0.25, 0, 0]),
        ({"top_p": 0.8}, [0.30, 0, 0.20, 0, 0.25, 0.10, 0]),
        ({"min_p": 0.3}, [0.30, 0, 0.20, 0, 0.25, 0.10, 0]),
        # The nucleus is taken of what top_k left: 0.30 and 0.25 are 11/15 of it.
        ({"top_k": 3, "top_p": 0.7}, [0.30, 0, 0, 0, 0.25, 0, 0]),
        # min_p compares with the best word that is allowed.
        ({"allowed_token_ids": (1, 3, 5), "min_p": 0.3}, [0, 0.05, 0, 0, 0, 0.10, 0]),
        # The nucleus is of the tempered distribution.
        ({"temperature": 0.5, "top_p": 0.9}, [0.09, 0, 0.04, 0, 0.0625, 0, 0]),
    ],
)
def test_sampled_frequencies_are_the_exact_shares(fields, shares):
    expected = np.array(shares) / sum(shares)
    tokens = generate(make(7, seed=1234, **fields), LOGITS, 6000)
    counts = np.bincount(tokens, minlength=7)
    possible = expected > 0
    assert (counts[~possible] == 0).all()
    chi_square = float((((counts - 6000 * expected) ** 2)[possible] / (6000 * expected)[possible]).sum())
    assert chi_square < 22.5  # 0.1 % point of 6 degrees of freedom; the seed is fixed


def test_the_draw_of_a_seed_and_position_is_fixed():
    draws = [Draws(42).at(position) for position in (0, 1, 63, 64, 1000)]
    shuffled = Draws(42)
    assert [shuffled.at(position) for position in (1000, 64, 63, 1, 0)] == draws[::-1]
    whole = np.random.Generator(np.random.Philox(key=42)).random(1001)
    assert draws == [float(whole[position]) for position in (0, 1, 63, 64, 1000)]
    assert Draws(43).at(0) != draws[0]
    assert Draws(-1).at(5) == Draws(2**64 - 1).at(5)


def test_a_seed_repeats_a_text_and_other_seeds_do_not():
    texts = [generate(make(7, seed=7), LOGITS, 40) for _ in range(2)]
    assert texts[0] == texts[1]
    assert generate(make(7, seed=8), LOGITS, 40) != texts[0]
    asked = RowSampler.create(SamplingParams(seed=7), (), 7, (), (), 99)
    assert generate(asked, LOGITS, 40) == texts[0]


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.8},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
    {"temperature": 1.3, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.05, "frequency_penalty": 0.7},
    {"temperature": 0.7, "logprobs": 3},
    {"temperature": 1.0, "logit_bias": ((3, 4.0),), "presence_penalty": 1.0},
    {"temperature": 1.0, "allowed_token_ids": (1, 5, 9)},
    {"temperature": 1.0, "min_tokens": 4},
    {},
]


def run_batch(order, logits, steps):
    """Tokens per setting when the rows of `order` are sampled together."""
    rows = {index: make(logits.shape[2], prompt=[1, 2, 3], eos=[0], seed=index, **SETTINGS[index]) for index in order}
    texts = {index: [] for index in order}
    for step in range(steps):
        outcomes = sample(np.ascontiguousarray(logits[step][list(order)]), list(rows.values()))
        for index, outcome in zip(order, outcomes, strict=True):
            texts[index].append(outcome)
            rows[index].accept(outcome.token)
    return texts


def test_no_row_depends_on_its_neighbours():
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((12, len(SETTINGS), 9001)) * 3).astype(np.float32)
    alone = {index: run_batch([index], logits, 12)[index] for index in range(len(SETTINGS))}
    for order in (list(range(len(SETTINGS))), list(reversed(range(len(SETTINGS)))), [4, 2, 9], [1, 0]):
        together = run_batch(order, logits, 12)
        assert together == {index: alone[index] for index in order}


def test_the_logits_of_the_runtime_are_never_written():
    logits = np.random.default_rng(0).standard_normal((len(SETTINGS), 9001)).astype(np.float32)
    before = logits.copy()
    logits.flags.writeable = False
    rows = [make(9001, prompt=[1, 2], eos=[0], bad=[[4]], **fields) for fields in SETTINGS]
    for outcome in sample(logits, rows):
        assert isinstance(outcome, Sampled)
    assert (logits == before).all()


def test_greedy_takes_the_first_of_equal_words():
    assert token_of(make(4, temperature=0.0), [1, 7, 7, 0]) == 1
    assert token_of(make(4, temperature=0.9, top_k=1), [1, 7, 7, 0]) == 1
    assert token_of(make(4, temperature=9e-6), [1, 7, 7, 0]) == 1


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {}, {"top_k": 3}, {"allowed_token_ids": (2,)}])
def test_a_poisoned_row_fails_alone(poison, fields):
    logits = np.tile(LOGITS, (3, 1))
    logits[1] = poison if poison == -np.inf else logits[1]
    logits[1, 4] = poison
    good, bad, also_good = sample(logits, [make(7, **fields) for _ in range(3)])
    assert isinstance(bad, NpuFault)
    assert isinstance(good, Sampled)
    assert good == also_good


def test_masks_that_leave_no_word_are_the_request_s_error():
    row = make(7, allowed_token_ids=(3,), eos=[3], min_tokens=2)
    neighbour = make(7, temperature=0.0)
    failed, fine = sample(np.tile(LOGITS, (2, 1)), [row, neighbour])
    assert isinstance(failed, InvalidRequest)
    assert fine == Sampled(0)


def test_words_above_the_vocabulary_are_never_sampled_nor_scored():
    logits = np.append(LOGITS, np.float32(50.0))
    for fields in ({"temperature": 0.0}, {"temperature": 1.5}, {"temperature": 0.0, "logprobs": 1}):
        tokens = generate(make(7, **fields), logits, 50)
        assert max(tokens) < 7
    (scored,) = sample(logits[None], [make(7, temperature=0.0, logprobs=1)])
    assert scored.logprob == pytest.approx(np.log(0.30), abs=1e-6)


def test_rows_and_logits_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        sample(LOGITS[None], [make(8)])
    with pytest.raises(ValueError, match="do not fit"):
        sample(np.tile(LOGITS, (2, 1)), [make(7)])
    assert sample(np.empty((0, 7), np.float32), []) == []


def test_logprobs_are_of_the_raw_row():
    row = make(7, temperature=0.0, logprobs=2, logit_bias=((3, 100.0),), repetition_penalty=2.0, prompt=[0])
    (outcome,) = sample(LOGITS[None], [row])
    assert outcome.token == 3
    assert outcome.logprob == pytest.approx(np.log(0.02), abs=1e-6)
    assert outcome.rank == 7
    assert [token for token, _ in outcome.top] == [0, 4]
    assert [value for _, value in outcome.top] == pytest.approx([np.log(0.30), np.log(0.25)], abs=1e-6)


def test_logprob_is_given_only_when_wanted():
    asked = [{}, {"want_logprob": True}, {"logprobs": 0}]
    outcomes = sample(np.tile(LOGITS, (3, 1)), [make(7, temperature=0.0, **fields) for fields in asked])
    assert outcomes[0] == Sampled(0)
    assert outcomes[1].logprob == pytest.approx(np.log(0.30), abs=1e-6)
    assert outcomes[1].top is None
    assert (outcomes[2].rank, outcomes[2].top) == (1, ())
