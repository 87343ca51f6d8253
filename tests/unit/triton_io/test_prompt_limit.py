from __future__ import annotations

from pathlib import Path

import pytest
from tiny_tokenizer import load_tokenizer

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.triton_io.prompt_limit import PromptLimit, limit_of

LONGEST_TOKEN = len("<|assistant|>")


class Lm:
    """Answers with its limit and counts the questions."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.asked = limit, 0

    def __call__(self) -> int | None:
        self.asked += 1
        return self.limit


@pytest.fixture
def lm() -> Lm:
    return Lm(1000)


@pytest.fixture
def limit(tmp_path: Path, lm: Lm) -> PromptLimit:
    return PromptLimit(load_tokenizer(tmp_path), lm)


def test_a_hopeless_text_is_refused_before_it_is_encoded(limit: PromptLimit) -> None:
    limit.check_text("x" * (1000 * LONGEST_TOKEN))
    with pytest.raises(InvalidRequest, match=r"at least 1001 tokens, max_model_len is 1000"):
        limit.check_text("x" * (1000 * LONGEST_TOKEN + 1))


def test_ids_are_counted(limit: PromptLimit) -> None:
    with pytest.raises(InvalidRequest, match="5000 tokens, max_model_len is 1000") as refused:
        limit.check_ids(5000)
    assert refused.value.param == "prompt"


def test_a_short_prompt_asks_nothing(limit: PromptLimit, lm: Lm) -> None:
    limit.check_text("x" * 4000)
    limit.check_ids(4000)
    assert lm.asked == 0


def test_an_answer_is_kept(limit: PromptLimit, lm: Lm) -> None:
    for _ in range(5):
        limit.check_text("x" * 10_000)
    assert lm.asked == 1


def test_without_an_answer_there_is_no_limit(limit: PromptLimit, lm: Lm) -> None:
    lm.limit = None
    limit.check_text("x" * 1_000_000)
    limit.check_ids(1_000_000)


def test_an_lm_that_does_not_run_has_no_limit() -> None:
    assert limit_of("no such model") is None
