"""KV that stays: turns go on where the slot ends, edits rewind, and what is taken over is exactly what is held."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_bench import VOCAB, Bench, prompt_of
from fake_npu import solo
from tiny_tokenizer import load_tokenizer

from triton_mblt.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")))


def computed(bench: Bench, since: int = 0) -> int:
    return sum(row.length for call in bench.npu.calls[since:] for row in call)


def ask(bench: Bench, prompt: list[int], count: int, **more: object) -> tuple[int, list[int]]:
    """Tokens that the device computed for it, and the answer, checked against a cold run."""
    calls = len(bench.npu.calls)
    handle = bench.submit(prompt, max_tokens=count, **more)
    bench.run()
    answer = bench.tokens(handle)
    assert answer == solo(prompt, count, VOCAB)
    return computed(bench, calls), answer


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("logits", ["last", "all"])
def test_ten_turns_compute_their_new_tokens_only(tokenizer: TextTokenizer, slots: int, logits: str) -> None:
    b = Bench(tokenizer, slots=slots, max_cache=400, logits=logits)
    text = prompt_of(20)
    work, answer = ask(b, text, 8, key=7)
    assert work == 20 + 7  # the last sampled token is not computed
    for turn in range(9):
        text = [*text, *answer, *prompt_of(5, turn)]
        work, answer = ask(b, text, 8, key=7, start=False)
        assert work == 1 + 5 + 7  # the token left over, the new ones, the answer but its last
    assert b.engine.stats()["prefix"]["in_place"] == 9


def test_an_edit_reuses_exactly_up_to_the_edit(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=1, max_cache=100)
    text = prompt_of(40)
    ask(b, text, 5)
    edited = [*text[:25], text[25] + 1 if text[25] < VOCAB - 1 else 3, *text[26:]]
    work, _ = ask(b, edited, 5)
    assert work == 40 - 25 + 4
    assert b.engine.stats()["prefix"]["rewind"] == 1


def test_the_same_prompt_again_computes_one_token(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=2, max_cache=100)
    text = prompt_of(30)
    ask(b, text, 5)
    work, _ = ask(b, text, 5)
    assert work == 1 + 4


def test_a_shared_beginning_is_computed_once_per_slot_at_most(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=3, max_cache=200, row_limit=16)
    system = prompt_of(100)
    handles = {}
    for number in range(20):
        prompt = [*system, *prompt_of(4, number)]
        handles[b.submit(prompt, max_tokens=3)] = prompt
    b.run()
    for handle, prompt in handles.items():
        assert b.tokens(handle) == solo(prompt, 3, VOCAB)
    assert computed(b) <= 3 * 100 + 20 * (4 + 3)


def test_a_cancelled_prefill_leaves_what_it_computed_and_no_more(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=1, max_cache=100, row_limit=8)
    text = prompt_of(60)
    handle = b.submit(text, max_tokens=3)
    b.step()
    b.engine.abort(handle, "client left")
    held = computed(b)
    assert 0 < held < 60
    work, _ = ask(b, text, 3)
    assert work == 60 - held + 2


def test_old_conversations_give_way_to_new_ones(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=2, max_cache=200)
    for number in range(2):
        ask(b, prompt_of(90, number), 3, key=number + 1)
    text = prompt_of(20, 9)
    _, answer = ask(b, text, 3, key=50)
    for other in range(10):
        ask(b, prompt_of(10, 20 + other), 3)
        text = [*text, *answer, *prompt_of(3, other)]
        work, answer = ask(b, text, 3, key=50, start=False)
        if other >= 4:
            assert work == 1 + 3 + 2, "the live conversation keeps its slot, a long old one does not hog its own"


def test_scored_prompts_are_computed_from_the_start(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=1, max_cache=100)
    text = prompt_of(30)
    ask(b, text, 2)
    work, _ = ask(b, text, 2, prompt_logprobs=1)
    assert work == 30 + 1


def test_kv_is_shared_only_under_one_salt(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=1, max_cache=100, row_limit=8)
    text = prompt_of(30)
    assert ask(b, text, 2, salt="tenant 1")[0] == 30 + 1
    assert ask(b, text, 2, salt="tenant 2")[0] == 30 + 1
    assert ask(b, text, 2, salt="tenant 2")[0] == 1 + 1
    assert ask(b, text, 2)[0] == 30 + 1
    gone = b.submit(text, salt="tenant 3", max_tokens=2)  # takes the slot, computes nothing
    b.engine._scheduler._admit()
    b.engine.abort(gone, "client left")
    assert ask(b, text, 2, salt="tenant 3")[0] == 30 + 1


def test_the_answer_says_how_much_was_there(tokenizer: TextTokenizer) -> None:
    b = Bench(tokenizer, slots=1, max_cache=100)
    text = prompt_of(30)
    first, second = b.submit(text, max_tokens=2), b.submit([*text, 9], max_tokens=2)
    b.run()
    assert b.last(first).num_cached_tokens == 0
    assert b.last(second).num_cached_tokens == 30
