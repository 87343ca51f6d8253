from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.text.stop import StopChecker, StopStrings

texts = st.text(alphabet="abc", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: list[str], unchecked: int = 0) -> tuple[str, str | None]:
    """The rule spelled out: the first end of a stop string behind the unchecked part, the longest ending there."""
    for end in range(unchecked + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


def run(checker: StopChecker, pieces: list[str]) -> tuple[str, str | None]:
    sent = ""
    for piece in pieces:
        text, hit = checker.feed(piece)
        sent += text
        if hit is not None:
            return sent, hit
    return sent + checker.flush(), None


@given(texts, stop_lists, st.lists(st.integers(0, 30), max_size=8))
@settings(max_examples=120, deadline=None)
def test_equals_the_naive_rule_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    assert run(StopChecker(StopStrings(stops)), cut(text, cuts)) == naive(text, stops)


def test_every_cut_of_a_small_text_gives_the_same() -> None:
    text, stops = "xaababcabx", ["abc", "bab", "cab"]
    for mask in range(1 << (len(text) - 1)):
        pieces = cut(text, [place + 1 for place in range(len(text) - 1) if mask >> place & 1])
        assert run(StopChecker(StopStrings(stops)), pieces) == naive(text, stops)


@given(texts, stop_lists)
@settings(max_examples=120, deadline=None)
def test_holds_exactly_the_longest_text_that_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    checker = StopChecker(StopStrings(stops))
    sent = ""
    for place, char in enumerate(text, 1):
        out, hit = checker.feed(char)
        if hit is not None:
            return
        sent += out
        seen = text[:place]
        held = max((n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), default=0)
        assert sent == seen[: len(seen) - held]


@given(texts, texts, stop_lists)
@settings(max_examples=120, deadline=None)
def test_unchecked_text_does_not_stop_but_may_begin_a_match(head: str, tail: str, stops: list[str]) -> None:
    checker = StopChecker(StopStrings(stops))
    sent, hit = checker.feed(head, check=False)
    assert hit is None
    more, hit = checker.feed(tail)
    sent += more
    if hit is None:
        sent += checker.flush()
    assert (sent, hit) == naive(head + tail, stops, unchecked=len(head))


def test_unchecked_match_is_not_held_for_ever() -> None:
    checker = StopChecker(StopStrings(["END"]))
    assert checker.feed("an END", check=False) == ("an END", None)


def test_include_keeps_the_stop_string() -> None:
    checker = StopChecker(StopStrings(["END"]), include=True)
    assert checker.feed("x E") == ("x ", None)
    assert checker.feed("ND y") == ("END", "END")


def test_only_a_real_partial_match_waits() -> None:
    checker = StopChecker(StopStrings(["zzzzzzzzzzzz", "\n\nUser:"]))
    assert [checker.feed(piece)[0] for piece in ("one ", "two\n", "three", "\n\nUs", "x")] == [
        "one ",
        "two",
        "\nthree",
        "",
        "\n\nUsx",
    ]


def test_empty_stop_string_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as error:
        StopStrings(["", "END"])
    assert error.value.param == "stop"


def test_steps_grow_linearly_with_the_text() -> None:
    """The worst case for rescanning: a long stop string that is always one character short."""
    stops = StopStrings(["a" * 500 + "b"])
    steps = 0
    plain = stops.step

    def counted(node: int, char: str) -> int:
        nonlocal steps
        steps += 1
        return plain(node, char)

    stops.step = counted  # type: ignore[method-assign]
    checker = StopChecker(stops)
    for _ in range(5000):
        checker.feed("a")
    assert steps == 5000
