"""What the engine says back about a request: text pieces, ends, errors."""

from __future__ import annotations

from typing import Literal

import msgspec

from triton_mblt.core.errors import ErrorInfo

FinishReason = Literal["stop", "length", "cancelled", "error"]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One candidate at one position. `rank` counts from 1 in the raw logits."""

    token_id: int
    logprob: float
    rank: int
    text: str


class Output(msgspec.Struct, frozen=True, array_like=True):
    """A piece of one request's answer. The one with `finish_reason` or `error` is the last.

    `token_ids` are the new tokens of this piece, `logprobs` one list per new token (chosen first, then the top ones).
    `cumulative_logprob` is the running sum over the whole answer. `num_input_tokens` is constant; `num_cached_tokens`
    says how many prompt tokens were not computed for this request. `prompt_logprobs` (the first piece only, when asked
    for) has one entry per prompt token in the form of `logprobs`, an empty one for the first token.
    """

    handle: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: ErrorInfo | None = None
    cumulative_logprob: float | None = None
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None

    @property
    def final(self) -> bool:
        return self.finish_reason is not None or self.error is not None
