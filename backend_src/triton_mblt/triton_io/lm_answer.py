"""What the LM says about one request, as Triton responses: one per piece of text, vllm_backend's names and shapes.

A model that calls another one (BLS) never gets an error response that comes after other responses, and waits for ever
(measured on Triton 2.51). So the front asks for errors as text: finish_reason "error", text_output the error's text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from triton_mblt.core.errors import ErrorInfo, format_error
from triton_mblt.core.events import Output, TokenLogprob
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.lm_request import Arrival
from triton_mblt.triton_io.sender import Responder

ERROR = "error"


class Answer:
    """Turns outputs into responses, on the lane of its request. The echo leads the first response."""

    def __init__(self, responder: Responder, arrival: Arrival) -> None:
        self._responder = responder
        self._wanted = arrival.request.outputs
        self._echo = arrival.echo
        self._with_logprobs = arrival.request.sampling.logprobs is not None
        self._errors_as_text = arrival.errors_as_text

    @property
    def request_id(self) -> str:
        return self._responder.request_id

    def fail(self, info: ErrorInfo) -> None:
        """The final response, an error, in the way that the caller can take."""
        if not self._errors_as_text:
            self._responder.fail(info)
            return
        text = wire.text_tensor("text_output", format_error(info))
        self._responder.send([text, wire.text_tensor("finish_reason", ERROR)], final=True)

    def send(self, output: Output) -> None:
        if output.error is not None:
            self.fail(output.error)
            return
        text, self._echo = self._echo + output.text, ""
        self._responder.send([wire.text_tensor("text_output", text), *self._more(output)], final=output.final)

    def _more(self, output: Output) -> list[Any]:
        """The outputs that the caller asked for. Counts, ids and logprobs are those of this response alone."""
        wanted = self._wanted
        more = []
        if wanted.finish_reason:
            more.append(wire.text_tensor("finish_reason", str(output.finish_reason)))
        if wanted.cumulative_logprob:
            total = math.nan if output.cumulative_logprob is None else output.cumulative_logprob
            more.append(wire.float_tensor("cumulative_logprob", total))
        if wanted.logprobs:
            more.append(wire.text_tensor("logprobs", logprobs_json(output) if self._with_logprobs else "null"))
        if wanted.num_input_tokens:
            more.append(wire.count_tensor("num_input_tokens", output.num_input_tokens))
        if wanted.num_output_tokens:
            more.append(wire.count_tensor("num_output_tokens", len(output.token_ids)))
        if wanted.token_ids:
            more.append(wire.ids_tensor("token_ids", output.token_ids))
        if wanted.num_cached_tokens:
            more.append(wire.count_tensor("num_cached_tokens", output.num_cached_tokens))
        if output.prompt_logprobs is not None:
            more.append(wire.text_tensor("prompt_logprobs", _positions_json(output.prompt_logprobs)))
        return more


def logprobs_json(output: Output) -> str:
    """A list with one object per new token: token id to its logprob, its rank (from 1) and its text."""
    return _positions_json(output.logprobs or ())


def _positions_json(positions: Sequence[Sequence[TokenLogprob]]) -> str:
    """One object per position, null where there is none (the first token of a prompt)."""
    shown = [
        {str(one.token_id): {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.text} for one in candidates}
        or None
        for candidates in positions
    ]
    return json.dumps(shown, ensure_ascii=False)
