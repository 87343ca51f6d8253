"""What one sampled token means for its turn: text released, log-probabilities presented, and whether the answer ends here."""

from __future__ import annotations

from typing import NamedTuple

from triton_mblt.core.events import FinishReason, TokenLogprob
from triton_mblt.engine.sampler import Sampled
from triton_mblt.engine.turn import Turn
from triton_mblt.text.tokenizer import TextTokenizer


class Ending(NamedTuple):
    """Why an answer ended. `stop_reason` is the stop token id or string (None for EOS); `rest` is text still held back."""

    reason: FinishReason
    stop_reason: str | int | None
    rest: str


def check_token(turn: Turn, result: Sampled, tokenizer: TextTokenizer) -> Ending | None:
    """Account for a token that the turn just appended: its text and logprobs go to the buffer; returns the Ending if it ends."""
    sampling, token = turn.request.sampling, result.token
    stops_by_id = turn.sampler.is_stop(token)
    hidden = stops_by_id and not sampling.include_stop_str_in_output
    piece = turn.text.push(() if hidden else (token,), turn.generated)
    turn.buffer.add(piece.text, token, result.logprob, _candidates(result, tokenizer))
    if stops_by_id:
        is_eos = token in tokenizer.eos_ids and token not in sampling.stop_token_ids
        return Ending("stop", None if is_eos else token, turn.text.finish())
    if piece.stop_hit is not None:
        return Ending("stop", piece.stop_hit, "")
    if turn.generated >= turn.limit:
        return Ending("length", None, turn.text.finish())
    return None


def _candidates(result: Sampled, tokenizer: TextTokenizer) -> tuple[TokenLogprob, ...]:
    if result.top is None or result.logprob is None:
        return ()
    chosen = TokenLogprob(result.token, result.logprob, result.rank, tokenizer.token_text(result.token))
    top = (TokenLogprob(token, value, rank, tokenizer.token_text(token)) for rank, (token, value) in enumerate(result.top, 1))
    return (chosen, *top)
