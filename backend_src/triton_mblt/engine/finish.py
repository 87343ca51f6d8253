"""What one sampled token means for its turn: text released, log-probabilities presented, and whether the answer ends
here."""

from __future__ import annotations

from typing import NamedTuple

from triton_mblt.core.events import FinishReason, TokenLogprob
from triton_mblt.engine.prompt_scores import PromptScores
from triton_mblt.engine.sampler import Sampled
from triton_mblt.engine.turn import Turn
from triton_mblt.text.token_text import token_text
from triton_mblt.text.tokenizer import TextTokenizer


class Ending(NamedTuple):
    """Why an answer ended. `stop_reason` is the stop token id or string (None for EOS); `rest` is text still held
    back."""

    reason: FinishReason
    stop_reason: str | int | None
    rest: str


def check_token(turn: Turn, result: Sampled, tokenizer: TextTokenizer) -> Ending | None:
    """Account for a token that the turn just appended: its text and logprobs go to the buffer; returns the Ending if it
    ends."""
    sampling, token = turn.request.sampling, result.token
    is_eos, is_asked = token in turn.stop_ids.eos, token in turn.stop_ids.asked
    stops_by_id = is_eos or is_asked
    hidden = stops_by_id and not sampling.include_stop_str_in_output
    piece = turn.text.push(() if hidden else (token,), turn.generated)
    turn.buffer.add(piece.text, token, result.logprob, _candidates(result, tokenizer))
    if turn.generated == 1 and turn.scores is not None:
        turn.buffer.prompt_logprobs = _prompt_candidates(turn, turn.scores, tokenizer)
    if stops_by_id:
        return Ending("stop", token if is_asked else None, turn.text.finish())
    if piece.stop_hit is not None:
        return Ending("stop", piece.stop_hit, "")
    if turn.generated >= turn.limit:
        return Ending("length", None, turn.text.finish())
    return None


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
