"""Penalties against a dense reference, masks, bias and bad words of one request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.engine.bad_words import BadWords
from triton_mblt.engine.sampler_rows import RowSampler

VOCAB = 50


def make(prompt=(), eos=(), bad=(), **fields):
    return RowSampler.create(SamplingParams(**fields), prompt, VOCAB, frozenset(eos), bad, 1)


def dense_penalties(logits, prompt, output, repetition, frequency, presence):
    """The textbook formula over the whole vocabulary, in float64."""
    counts = np.bincount(output, minlength=VOCAB) if output else np.zeros(VOCAB)
    seen = counts > 0
    seen[[token for token in prompt if token < VOCAB]] = True
    out = logits.astype(np.float64)
    out = np.where(seen, np.where(out > 0, out / repetition, out * repetition), out)
    return out - frequency * counts - presence * (counts > 0)


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=150)


@given(tokens, tokens, st.sampled_from([1.0, 1.8, 0.6]), st.sampled_from([0.0, 0.7, -2.0]), st.sampled_from([0.0, 1.5]))
@settings(max_examples=150, deadline=None)
def test_penalties_equal_the_dense_formula(prompt, output, repetition, frequency, presence):
    row = make(prompt, repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    for token in output:
        row.accept(token)
    logits = np.random.default_rng(len(output)).standard_normal(VOCAB).astype(np.float32) * 5
    expected = dense_penalties(logits, prompt, output, repetition, frequency, presence)
    assert np.allclose(row.edited(logits), expected, rtol=1e-5, atol=1e-5)


def test_presence_and_frequency_do_not_count_the_prompt():
    logits = np.ones(VOCAB, np.float32)
    assert make([3, 3, 3], presence_penalty=1.0, frequency_penalty=1.0).edited(logits) is logits
    assert make([3, 3, 3], repetition_penalty=2.0).edited(logits)[3] == 0.5


def test_prompt_ids_above_the_vocabulary_are_skipped():
    edited = make(np.array([VOCAB, VOCAB + 7, 2], np.int32), repetition_penalty=2.0).edited(np.ones(VOCAB, np.float32))
    assert np.flatnonzero(edited != 1.0).tolist() == [2]


def test_a_row_without_edits_is_passed_through_uncopied():
    logits = np.ones(VOCAB, np.float32)
    assert make([1, 2], eos=[0], temperature=0.3, top_p=0.5, stop_token_ids=(4,)).edited(logits) is logits


def test_end_and_stop_ids_are_masked_until_min_tokens():
    row = make(eos=[0, 9], stop_token_ids=(4,), min_tokens=2)
    logits = np.zeros(VOCAB, np.float32)
    for _ in range(2):
        assert np.flatnonzero(np.isneginf(row.edited(logits))).tolist() == [0, 4, 9]
        row.accept(1)
    assert row.edited(logits) is logits


def test_only_allowed_ids_stay_and_bias_cannot_bring_others_back():
    row = make(allowed_token_ids=(7, 3, 7), logit_bias=((3, 2.0), (8, 100.0)))
    edited = row.edited(np.zeros(VOCAB, np.float32))
    assert np.flatnonzero(edited > -np.inf).tolist() == [3, 7]
    assert edited[3] == 2.0
    assert edited[7] == 0.0


def test_bias_is_applied_before_penalties():
    row = make([5], repetition_penalty=2.0, logit_bias=((5, 3.0),))
    assert row.edited(np.ones(VOCAB, np.float32))[5] == 2.0


def test_bad_words_of_one_token_are_always_masked():
    row = make(bad=[[6], [11]])
    assert np.flatnonzero(np.isneginf(row.edited(np.zeros(VOCAB, np.float32)))).tolist() == [6, 11]


few_ids = st.integers(0, 3)


@given(st.lists(few_ids, max_size=30), st.lists(st.lists(few_ids, max_size=4), max_size=5))
@settings(max_examples=200, deadline=None)
def test_bad_words_ban_exactly_what_would_complete_a_run(output, runs):
    watched = BadWords(runs)
    for token in output:
        watched.accept(token)
    completing = {token for token in range(4) for run in runs if run and [*output, token][-len(run) :] == run}
    assert set(watched.banned()) == completing


def test_create_uses_the_request_s_seed_before_the_default():
    assert make(seed=5).draw() == RowSampler.create(SamplingParams(), (), VOCAB, (), (), 5).draw()
    assert make(seed=5).draw() != make(seed=6).draw()


def test_asking_for_the_draw_does_not_move_it():
    row = make(seed=5)
    assert row.draw() == row.draw()
    before = row.draw()
    row.accept(1)
    assert row.draw() != before


@pytest.mark.parametrize("count", [63, 64, 65, 200])
def test_the_penalty_table_grows(count):
    row = RowSampler.create(SamplingParams(frequency_penalty=1.0), (), 500, (), (), 1)
    for token in range(count):
        row.accept(token)
    assert row.edited(np.zeros(500, np.float32)).tolist() == [-1.0] * count + [0.0] * (500 - count)
