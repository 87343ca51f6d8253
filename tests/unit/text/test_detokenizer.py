from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triton_mblt.text.detokenizer import Detokenizer
from triton_mblt.text.tokenizer import TextTokenizer

BYTE_LEVEL = ["llama3", "qwen", "exaone", "smollm2", "SmolLM2-135M-Instruct"]
FAMILIES = [*BYTE_LEVEL, "metaspace"]
MULTILINGUAL = [
    "The quick brown fox.",
    "Příliš žluťoučký kůň",
    "안녕하세요, 각하!",
    "👩‍👩‍👧 family 🇨🇿🇰🇷 e\u0301 \u1100\u1161\u11a8",
    "  two  spaces\n\n\tand tabs ",
    "genuine \ufffd stays",
]
unicode_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.sampled_from(MULTILINGUAL)


def stream(
    tokenizer: TextTokenizer, ids: Sequence[int], prompt: Sequence[int] = (), *, skip: bool = True, size: int = 1
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    pieces = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [*pieces, detokenizer.finish()]


def byte_ids(tokenizer: TextTokenizer, data: bytes) -> list[int]:
    """One id per byte, as a model that falls apart would write it."""
    id_of = {
        tokenizer.token_bytes(id_): id_ for id_ in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(id_)) == 1
    }
    return [id_of[bytes([byte])] for byte in data]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("skip", [True, False])
@given(text=unicode_text, prompt=unicode_text, size=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_joined_text_is_the_one_shot_decode_behind_the_prompt(
    load: Callable[[str], TextTokenizer], family: str, skip: bool, text: str, prompt: str, size: int
) -> None:
    tokenizer = load(family)
    head, ids = tokenizer.encode(prompt), tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids, head, skip=skip, size=size)
    before = tokenizer.decode(head, skip_special_tokens=skip)
    assert before + "".join(pieces) == tokenizer.decode(head + ids, skip_special_tokens=skip)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=unicode_text.filter(lambda text: "\ufffd" not in text))
@settings(max_examples=40, deadline=None)
def test_no_piece_shows_half_a_character(load: Callable[[str], TextTokenizer], family: str, text: str) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if "\ufffd" not in tokenizer.decode(ids):
        assert not any("\ufffd" in piece for piece in stream(tokenizer, ids))


@pytest.mark.parametrize("family", BYTE_LEVEL)
@pytest.mark.parametrize("skip", [True, False])
@given(seed=st.integers(0, 2**32), count=st.integers(0, 40), size=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_random_ids_equal_the_one_shot_decode(
    load: Callable[[str], TextTokenizer], family: str, skip: bool, seed: int, count: int, size: int
) -> None:
    tokenizer, rng = load(family), random.Random(seed)
    ids = [rng.randrange(tokenizer.vocab_size + 5) for _ in range(count)]
    assert "".join(stream(tokenizer, ids, skip=skip, size=size)) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(
    data=st.binary(max_size=24)
    | st.lists(st.sampled_from([b"\xf0\x9f", b"\xed\xa0\x80", b"\xc3", b"\x80", b"a"])).map(b"".join)
)
@example(b"\xf0\x9f")
@example(b"\x80" * 40)
@example(b"\xf0\x9f\x92a\xe2\x82")
@example(b"\xe0\x80\x80\xf4\x90\x80\x80")
@settings(max_examples=150, deadline=None)
def test_invalid_bytes_equal_the_one_shot_decode_and_wait_at_most_three(
    load: Callable[[str], TextTokenizer], data: bytes
) -> None:
    tokenizer = load("llama3")
    ids = byte_ids(tokenizer, data)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert len(pieces[-1]) <= 1
    for start in range(len(pieces) - 5):
        assert any(pieces[start : start + 4])


def test_special_tokens_inside_a_character_do_not_split_it(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("llama3")
    smile = byte_ids(tokenizer, "😀".encode())
    ids = [*smile[:2], tokenizer.eos_ids[0], *smile[2:]]
    assert "".join(stream(tokenizer, ids)) == "😀"
    assert "".join(stream(tokenizer, ids, skip=False)) == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(("begun", "output", "text"), [(2, "\x81 ok", "각 ok"), (2, "x", "x"), (1, "\xb0y", "y")])
def test_prompt_that_ends_inside_a_character(
    load: Callable[[str], TextTokenizer], begun: int, output: str, text: str
) -> None:
    """Only generated text leaves: the character that the output completes, never the prompt's own U+FFFD.

    In the last case EA B0 is still a beginning; y turns it into the one U+FFFD that the prompt already shows.
    """
    tokenizer = load("llama3")
    prompt = tokenizer.encode("Hi ") + byte_ids(tokenizer, "각".encode()[:begun])
    ids = byte_ids(tokenizer, output.encode("latin-1"))
    got = "".join(stream(tokenizer, ids, prompt))
    assert got == text


def test_prompt_that_ends_inside_a_character_and_nothing_comes(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("qwen")
    assert stream(tokenizer, [], byte_ids(tokenizer, "각".encode()[:2])) == [""]


def test_metaspace_border_keeps_the_space_and_drops_only_the_first(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("metaspace")
    word = tokenizer.encode("fox", add_special_tokens=False)  # its first token carries the space mark
    assert "".join(stream(tokenizer, word, tokenizer.encode("quick"))) == " fox"
    assert "".join(stream(tokenizer, word, [1])) == "fox"


def test_metaspace_invalid_bytes_do_not_wait(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("metaspace")
    bad = tokenizer.backend.token_to_id("<0x80>")
    assert stream(tokenizer, [bad] * 40) == ["\ufffd"] * 40 + [""]
    assert tokenizer.decode([bad] * 40) == "\ufffd" * 40
