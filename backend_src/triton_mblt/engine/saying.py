"""From a sampled token to an Output: text, log-probabilities, the last word. Runs while the NPU works.

The engine's step leaves Sayings; one other thread renders them, in order, so that detokenizing stands between no two
device calls. From its first Saying on, a turn's buffer belongs to that thread, and its text too unless stop strings
need it in the step.
"""

from __future__ import annotations

from typing import NamedTuple

from triton_mblt.core.events import FinishReason, Output, TokenLogprob
from triton_mblt.engine.prompt_scores import PromptScores
from triton_mblt.engine.sampler import Sampled
from triton_mblt.engine.turn import Turn
from triton_mblt.text.token_text import token_text
from triton_mblt.text.tokenizer import TextTokenizer


class Ending(NamedTuple):
    """Why an answer ended. `stop_reason` is the stop token id or string (None for EOS); `flush` says that text which is
    still held back belongs to the answer."""

    reason: FinishReason
    stop_reason: str | int | None
    flush: bool


class Saying(NamedTuple):
    """One token of one turn. `shown` are the ids that become text; `text` is that text when the step has made it."""

    turn: Turn
    result: Sampled
    shown: tuple[int, ...]
    text: str | None
    first: bool
    ending: Ending | None


def render(saying: Saying, tokenizer: TextTokenizer) -> Output | None:
    """The Output of a token, None when a stream has nothing to hear yet."""
    turn, result = saying.turn, saying.result
    text = turn.text.push(saying.shown, 0).text if saying.text is None else saying.text
    turn.buffer.add(text, result.token, result.logprob, _candidates(result, tokenizer))
    if saying.first and turn.scores is not None:
        turn.buffer.prompt_logprobs = _prompt_candidates(turn, turn.scores, tokenizer)
    if saying.ending is None:
        return turn.buffer.piece()
    rest = turn.text.finish() if saying.ending.flush else ""
    return turn.buffer.end(saying.ending.reason, saying.ending.stop_reason, rest)


def _prompt_candidates(
    turn: Turn, scores: PromptScores, tokenizer: TextTokenizer
) -> tuple[tuple[TokenLogprob, ...], ...]:
    """Per prompt token its own score, then the likeliest words; nothing for the first token."""
    prompt = turn.tokens[: turn.prompt_length].tolist()
    return tuple(
        () if scored is None else _shown(token, scored.logprob, scored.rank, scored.top, tokenizer)
        for token, scored in zip(prompt, scores.positions, strict=True)
    )


def _candidates(result: Sampled, tokenizer: TextTokenizer) -> tuple[TokenLogprob, ...]:
    if result.top is None or result.logprob is None or result.rank is None:
        return ()
    return _shown(result.token, result.logprob, result.rank, result.top, tokenizer)


def _shown(
    token: int, logprob: float, rank: int, top: tuple[tuple[int, float], ...], tokenizer: TextTokenizer
) -> tuple[TokenLogprob, ...]:
    first = TokenLogprob(token, logprob, rank, token_text(tokenizer, token).text)
    rest = (
        TokenLogprob(one, value, place, token_text(tokenizer, one).text) for place, (one, value) in enumerate(top, 1)
    )
    return (first, *rest)
