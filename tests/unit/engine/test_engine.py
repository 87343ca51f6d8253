"""The step loop on the hand-computable device: every answer must equal the solo run computed by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engine_bench import VOCAB, Bench, prompt_of
from fake_npu import solo
from tiny_tokenizer import load_tokenizer

from triton_mblt.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def bench(tokenizer: TextTokenizer) -> Callable[..., Bench]:
    return lambda **spec: Bench(tokenizer, **spec)


@pytest.mark.parametrize("logits", ["last", "all"])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_many_requests_equal_their_solo_runs(bench: Callable[..., Bench], slots: int, logits: str) -> None:
    b = bench(slots=slots, logits=logits, row_limit=8)
    prompts = [prompt_of(length, seed) for seed, length in enumerate([1, 7, 8, 9, 16, 17, 3, 30])]
    handles = [b.submit(prompt, max_tokens=10) for prompt in prompts]
    b.run()
    for handle, prompt in zip(handles, prompts, strict=True):
        assert b.tokens(handle) == solo(prompt, 10, VOCAB)
        assert b.last(handle).finish_reason == "length"


def test_late_joiners_equal_their_solo_runs(bench: Callable[..., Bench]) -> None:
    b, rng = bench(slots=3), random.Random(5)
    wanted = {}
    for number in range(20):
        prompt, count = prompt_of(rng.randint(1, 40), number), rng.randint(1, 20)
        wanted[b.submit(prompt, max_tokens=count)] = solo(prompt, count, VOCAB)
        for _ in range(rng.randint(0, 6)):
            b.step()
    b.run()
    assert {handle: b.tokens(handle) for handle in wanted} == wanted


def test_prefill_is_mixed_with_decode_and_bounded(bench: Callable[..., Bench]) -> None:
    b = bench(slots=4, row_limit=8, max_cache=64)
    b.submit(prompt_of(2), max_tokens=40)
    b.step()
    b.submit(prompt_of(50), max_tokens=2)
    b.run()
    mixed = [call for call in b.npu.calls if {row.length for row in call} > {1}]
    assert len(mixed) == 7  # 50 tokens in chunks of 8, each beside a decode row
    assert all(len(call) == 2 for call in mixed)


def test_prompt_that_fills_the_cache_gives_one_token(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2, max_cache=32)
    full, almost = b.submit(prompt_of(32)), b.submit(prompt_of(31))
    b.run()
    assert b.tokens(full) == solo(prompt_of(32), 1, VOCAB)
    assert b.tokens(almost) == solo(prompt_of(31), 2, VOCAB)
    assert b.last(full).finish_reason == "length"


def test_abort_frees_the_row_before_the_next_call(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    gone, stays = b.submit(prompt_of(4), max_tokens=30), b.submit(prompt_of(5), max_tokens=5)
    b.step(), b.step()
    b.engine.abort(gone, "client left")
    b.engine.abort(gone, "client left")
    calls = len(b.npu.calls)
    b.run()
    assert all(len(call) == 1 for call in b.npu.calls[calls:])
    error = b.last(gone).error
    assert error is not None
    assert (error.code, error.request_id) == ("CANCELLED", f"r{gone}")
    assert b.tokens(stays) == solo(prompt_of(5), 5, VOCAB)


def test_a_queued_request_that_is_aborted_never_reaches_the_device(bench: Callable[..., Bench]) -> None:
    b = bench(slots=1)
    b.submit(prompt_of(4), max_tokens=5)
    queued = b.submit(prompt_of(40), max_tokens=5)
    b.step()
    b.engine.abort(queued, "client left")
    b.run()
    assert sum(row.length for call in b.npu.calls for row in call) == 4 + 4


def test_turns_of_a_sequence_run_in_order(bench: Callable[..., Bench]) -> None:
    b = bench(slots=4)
    first = b.submit(prompt_of(20), key=5, max_tokens=10)
    second = b.submit(prompt_of(6), key=5, start=False, max_tokens=3)
    other = b.submit(prompt_of(6), key="5", max_tokens=3)
    seen = []
    while b.engine.has_work():
        for output in b.heard():
            seen.append(output.handle)
            b.said[output.handle].append(output)
    assert seen.index(second) > len(seen) - 1 - seen[::-1].index(first)
    assert seen.index(other) < seen.index(second)  # "5" and 5 are different sequences
    assert b.tokens(second) == solo(prompt_of(6), 3, VOCAB)


def test_start_replaces_what_the_sequence_was_doing(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    running = b.submit(prompt_of(4), key=9, max_tokens=30)
    queued = b.submit(prompt_of(5), key=9, start=False, max_tokens=30)
    b.step()
    fresh = b.submit(prompt_of(6), key=9, max_tokens=4)
    b.run()
    for old in (running, queued):
        error = b.last(old).error
        assert error is not None
        assert error.code == "CANCELLED"
    assert b.tokens(fresh) == solo(prompt_of(6), 4, VOCAB)


def test_a_device_fault_ends_only_the_rows_of_its_call(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    hit = [b.submit(prompt_of(4), max_tokens=10), b.submit(prompt_of(5), max_tokens=10)]
    waiting = b.submit(prompt_of(6), max_tokens=10)
    b.step(), b.step()
    b.npu.fail_at = {len(b.npu.calls)}
    b.run()
    for handle in hit:
        error = b.last(handle).error
        assert error is not None
        assert error.code == "INTERNAL"
    assert b.tokens(waiting) == solo(prompt_of(6), 10, VOCAB)


def test_a_slot_that_holds_less_than_claimed_is_rebuilt(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    b = bench(slots=2)
    handle = b.submit(prompt_of(12), max_tokens=10)
    for _ in range(4):
        b.step()
    slot = next(iter(b.engine._turns.values())).slot
    assert slot is not None
    slot.held = 5
    b.npu.kv[slot.cache_id, 5:] = -1
    b.run()
    assert b.tokens(handle) == solo(prompt_of(12), 10, VOCAB)
    assert b.engine.stats()["rebuilds"] == 1
    assert "MBLT runtime cache token count" in caplog.text


def test_poisoned_kv_is_an_error_and_never_a_token(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    handle = b.submit(prompt_of(12), max_tokens=10)
    for _ in range(4):
        b.step()
    b.npu.kv[0, 5] = -1
    b.run()
    error = b.last(handle).error
    assert error is not None
    assert error.code == "INTERNAL"


def test_stop_token_ids(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    prompt = prompt_of(6)
    answer = solo(prompt, 5, VOCAB)
    stopped = b.submit(prompt, max_tokens=20, stop_token_ids=(answer[3],))
    b.run()
    last = b.last(stopped)
    assert (last.finish_reason, last.stop_reason) == ("stop", answer[3])
    assert b.tokens(stopped) == answer[:4]
    text = "".join(output.text for output in b.said[stopped])
    assert text == b.tokenizer.decode(answer[:3])  # the stop token itself is not shown


def test_eos_ends_unless_ignored(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    to_eos = {"logit_bias": ((0, 100.0),), "max_tokens": 5}
    ends, goes_on = b.submit(prompt_of(6), ignore_eos=False, **to_eos), b.submit(prompt_of(6), **to_eos)
    late = b.submit(prompt_of(6), ignore_eos=False, min_tokens=3, **to_eos)
    b.run()
    assert (b.last(ends).finish_reason, b.last(ends).stop_reason, b.tokens(ends)) == ("stop", None, [0])
    assert (b.last(goes_on).finish_reason, b.tokens(goes_on)) == ("length", [0] * 5)
    assert b.tokens(late) == [*solo(prompt_of(6), 3, VOCAB), 0]


def test_whole_answer_without_stream_is_one_output(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    handle = b.submit(prompt_of(6), max_tokens=8, stream=False)
    b.run()
    assert len(b.said[handle]) == 1
    assert b.tokens(handle) == solo(prompt_of(6), 8, VOCAB)
    assert b.last(handle).cumulative_logprob is not None


def test_wrong_vocabulary_in_a_sampling_field_is_an_error_output(bench: Callable[..., Bench]) -> None:
    b = bench(slots=2)
    handle = b.submit(prompt_of(6), max_tokens=8, allowed_token_ids=(VOCAB + 5,))
    b.run()
    error = b.last(handle).error
    assert error is not None
    assert (error.code, error.param) == ("INVALID_ARG", "allowed_token_ids")


def test_priority_goes_first(bench: Callable[..., Bench]) -> None:
    b = bench(slots=1)
    b.submit(prompt_of(4), max_tokens=2)
    late = b.submit(prompt_of(5), max_tokens=2, priority=5)
    early = b.submit(prompt_of(6), max_tokens=2, priority=-5)
    order = []
    while b.engine.has_work():
        order += [output.handle for output in b.heard()]
    assert order.index(early) < order.index(late)


@pytest.mark.parametrize("logits", ["last", "all"])
def test_prompt_logprobs_equal_a_log_softmax_by_hand(bench: Callable[..., Bench], logits: str) -> None:
    b = bench(slots=2, logits=logits, row_limit=8)
    prompt = prompt_of(20)
    other = b.submit(prompt_of(30), max_tokens=25)
    handle = b.submit(prompt, max_tokens=2, prompt_logprobs=2)
    b.run()
    scored = b.said[handle][0].prompt_logprobs
    assert scored is not None
    assert scored[0] == ()
    for position in range(1, len(prompt)):
        row = b.npu.logits_after(prompt[:position]).astype(np.float64)
        chosen, *top = scored[position]
        assert chosen.token_id == prompt[position]
        assert chosen.logprob == pytest.approx(row[prompt[position]] - np.log(np.exp(row).sum()), abs=1e-5)
        assert [one.token_id for one in top] == np.argsort(-row)[:2].tolist()
    assert all(output.prompt_logprobs is None for output in b.said[handle][1:])
    assert b.tokens(handle) == solo(prompt, 2, VOCAB)
    assert b.tokens(other) == solo(prompt_of(30), 25, VOCAB)
