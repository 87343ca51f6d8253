"""Characters and stop strings across token borders, streamed by the real server from tokens the emulator forces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lm_control import Control
from triton_calls import Reply, Stream
from triton_server import TritonServer

from triton_mblt.emulator import faults
from triton_mblt.text.tokenizer import TextTokenizer

TEXTS = [
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "안녕하세요, 세계! 반갑습니다.",
    "family 👩‍👩‍👧‍👦, flag 🇨🇿, ok 👍🏽 end",
]

Force = Callable[[str], None]


@pytest.fixture
def tokenizer(package: Path) -> TextTokenizer:
    return TextTokenizer.load(package)


@pytest.fixture
def force(server: TritonServer, control: Control, tokenizer: TextTokenizer) -> Iterator[Force]:
    """Makes the device's best tokens spell a text, then EOS."""
    run_dir = server.folder / "emulator"
    pid = control.worker_pid()

    def arm(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        faults.inject(pid, {"kind": "script", "tokens": [*ids, *tokenizer.eos_ids]}, run_dir=run_dir)

    yield arm
    faults.clear(pid, run_dir=run_dir)


def ask(stream: Stream, **sampling: object) -> Reply:
    wanted = {"temperature": 0, "max_tokens": 200, **sampling}
    return stream.send("mblt", text="say it", sampling=wanted, stream=True, return_finish_reason=True).wait()


@pytest.mark.parametrize("text", TEXTS)
def test_no_half_characters_and_equal_to_the_one_shot_decode(stream: Stream, force: Force, text: str) -> None:
    force(text)
    reply = ask(stream)
    assert reply.text == text
    assert all("\ufffd" not in response["text_output"] for response in reply.responses)
    assert len(reply.responses) > 5


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one two three four", "three", "one two "),
        ("one two three four", "o t", "one tw"),
        ("ab abc abd end", "abd", "ab abc "),
        (TEXTS[0], "kůň", "Příliš žluťoučký "),
        (TEXTS[1], "세계", "안녕하세요, "),
        (TEXTS[2], "👍🏽", TEXTS[2].split("👍🏽")[0]),
    ],
)
def test_stop_strings_across_token_borders(stream: Stream, force: Force, text: str, stop: str, shown: str) -> None:
    force(text)
    reply = ask(stream, stop=[stop])
    assert reply.text == shown
    assert reply.responses[-1]["finish_reason"] == "stop"
    force(text)
    assert ask(stream, stop=[stop], include_stop_str_in_output=True).text == shown + stop


def test_text_that_only_looked_like_a_stop_string_arrives(stream: Stream, force: Force) -> None:
    force("a thr, a thre, a th")
    assert ask(stream, stop=["three"]).text == "a thr, a thre, a th"


def test_a_character_cut_by_max_tokens_is_shown_as_the_one_shot_decode_shows_it(
    stream: Stream, force: Force, tokenizer: TextTokenizer
) -> None:
    force("a👍")
    ids = tokenizer.encode("a👍", add_special_tokens=False)[:3]
    reply = ask(stream, max_tokens=3)
    assert reply.text == tokenizer.decode(ids)
