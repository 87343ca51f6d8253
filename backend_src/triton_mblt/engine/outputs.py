"""Collects what a turn says until it is worth a message: text for streams, everything at the end otherwise."""

from __future__ import annotations

from triton_mblt.core.errors import ErrorInfo
from triton_mblt.core.events import FinishReason, Output, TokenLogprob
from triton_mblt.core.request import GenerateRequest


class OutputBuffer:
    """Pieces of one answer. A stream lets a piece go when it has text (held-back tokens join the next piece); the end
    always goes."""

    def __init__(self, request: GenerateRequest, prompt_length: int) -> None:
        self._handle = request.handle
        self._stream = request.outputs.stream
        self._prompt_length = prompt_length
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[tuple[TokenLogprob, ...]] = []
        self._cumulative: float | None = None
        self.cached = 0  # prompt tokens that needed no computing
        self.prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None  # goes with the next piece

    def add(self, text: str, token: int, logprob: float | None, candidates: tuple[TokenLogprob, ...]) -> None:
        """One generated token: the text it released, its log-probability if computed, and its candidates if asked
        for."""
        if text:
            self._text.append(text)
        self._tokens.append(token)
        if logprob is not None:
            self._cumulative = (self._cumulative or 0.0) + logprob
        if candidates:
            self._logprobs.append(candidates)

    def piece(self) -> Output | None:
        """What a stream should hear now, or None."""
        return self._take(None, None) if self._stream and self._text else None

    def end(self, reason: FinishReason, stop_reason: str | int | None, rest: str) -> Output:
        """The last piece; `rest` is text that was held back."""
        self._text.append(rest)
        return self._take(reason, stop_reason)

    def error(self, error: ErrorInfo) -> Output:
        """The end by an error: text not yet sent is not sent."""
        return Output(self._handle, "", (), error=error, num_input_tokens=self._prompt_length)

    def _take(self, reason: FinishReason | None, stop_reason: str | int | None) -> Output:
        output = Output(
            self._handle,
            "".join(self._text),
            tuple(self._tokens),
            finish_reason=reason,
            stop_reason=stop_reason,
            cumulative_logprob=self._cumulative,
            logprobs=tuple(self._logprobs) or None,
            num_input_tokens=self._prompt_length,
            num_cached_tokens=self.cached,
            prompt_logprobs=self.prompt_logprobs,
        )
        self.prompt_logprobs = None
        self._text, self._tokens, self._logprobs = [], [], []
        return output
