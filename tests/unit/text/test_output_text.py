from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.text.output_text import TextAssembler
from triton_mblt.text.token_text import token_text
from triton_mblt.text.tokenizer import TextTokenizer


def run(assembler: TextAssembler, ids: Sequence[int], size: int = 1) -> tuple[str, str | None]:
    sent = ""
    for start in range(0, len(ids), size):
        some = ids[start : start + size]
        piece = assembler.push(some, start + len(some))
        sent += piece.text
        if piece.stop_hit is not None:
            return sent, piece.stop_hit
    return sent + assembler.finish(), None


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 5),
    stop=st.lists(st.sampled_from(["a", "e q", "각", "\ufffd", "1"]), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_text_is_the_one_shot_decode_up_to_the_stop(
    load: Callable[[str], TextTokenizer], seed: int, size: int, stop: list[str]
) -> None:
    tokenizer, rng = load("llama3"), random.Random(seed)
    ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(40))]
    whole = tokenizer.decode(ids)
    text, hit = run(TextAssembler(tokenizer, stop=stop), ids, size)
    ends = [whole.index(entry) + len(entry) for entry in stop if entry in whole]
    if hit is not None:
        assert text == whole[: min(ends) - len(hit)]
    else:
        assert text == whole
        # only the U+FFFD of an unfinished character at the very end is not looked at
        assert not ends or (whole[-1] == "\ufffd" and min(ends) == len(whole))


def test_no_stop_strings_and_some_give_the_same_text(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("qwen")
    text = "Příliš žluťoučký 각하 👩‍👩‍👧 kůň"
    ids = tokenizer.encode(text)
    assert run(TextAssembler(tokenizer), ids) == run(TextAssembler(tokenizer, stop=["never"]), ids) == (text, None)


def test_stop_over_token_borders_sends_nothing_of_it(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("smollm2")
    ids = tokenizer.encode("ABC DEFGHIJ KLM")
    for size in (1, 2, len(ids)):
        assert run(TextAssembler(tokenizer, stop=["DEFGHIJ"]), ids, size) == ("ABC ", "DEFGHIJ")
        included = TextAssembler(tokenizer, stop=["DEFGHIJ"], include_stop=True)
        assert run(included, ids, size) == ("ABC DEFGHIJ", "DEFGHIJ")


def test_min_tokens_ignores_what_ends_before(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("smollm2")
    digits = tokenizer.encode("1121")  # one token each
    assert len(digits) == 4
    for min_tokens, expected in ((0, ""), (1, "1"), (2, "112"), (3, "112"), (4, "1121")):
        for size in (1, 4):
            text, hit = run(TextAssembler(tokenizer, stop=["1"], min_tokens=min_tokens), digits, size)
            assert (text, hit) == (expected, "1" if min_tokens < 4 else None)


def test_special_token_as_stop_string(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("smollm2")
    ids = tokenizer.encode("hi the<|im_end|>more")
    assert run(TextAssembler(tokenizer, stop=["<|im_end|>", "zz"]), ids) == ("hi the", "<|im_end|>")
    included = TextAssembler(tokenizer, stop=["<|im_end|>"], include_stop=True)
    assert run(included, ids) == ("hi the<|im_end|>", "<|im_end|>")
    shown = TextAssembler(tokenizer, stop=["<|im_end|>"], skip_special_tokens=False)
    assert run(shown, ids) == ("hi the", "<|im_end|>")
    late = TextAssembler(tokenizer, stop=["<|im_end|>"], min_tokens=99)
    assert run(late, ids) == ("hi themore", None)


def test_held_text_comes_out_at_the_end(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("smollm2")
    assert run(TextAssembler(tokenizer, stop=["fox jumps"]), tokenizer.encode("the fox jum")) == ("the fox jum", None)


def test_empty_stop_string_is_refused(load: Callable[[str], TextTokenizer]) -> None:
    with pytest.raises(InvalidRequest) as error:
        TextAssembler(load("smollm2"), stop=["", "END"])
    assert error.value.param == "stop"


def test_token_text_shows_real_bytes(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("llama3")
    ids = tokenizer.encode(" the 😀<|eot_id|>", add_special_tokens=False)
    shown = [token_text(tokenizer, id_) for id_ in ids]
    assert b"".join(entry.data for entry in shown) == " the 😀<|eot_id|>".encode()
    assert shown[-1].text == "<|eot_id|>"
    assert shown[0].text.startswith(" ")
    half = tokenizer.backend.token_to_id("ð")
    assert (token_text(tokenizer, half).text, token_text(tokenizer, half).data) == ("\ufffd", b"\xf0")
    assert token_text(tokenizer, tokenizer.vocab_size + 9).data == b""


def test_token_text_of_a_space_marked_vocabulary(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("metaspace")
    assert token_text(tokenizer, tokenizer.backend.token_to_id("<0xC3>")).data == b"\xc3"
    assert token_text(tokenizer, tokenizer.encode("the", add_special_tokens=False)[0]).text.startswith(" ")
    assert token_text(tokenizer, 2).text == "</s>"
