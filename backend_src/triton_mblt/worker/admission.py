"""What the LM's door refuses before a request is queued, given the limits of the loaded model."""

from __future__ import annotations

import math

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.request import GenerateRequest
from triton_mblt.core.sampling_params import check_against_vocab

_LONGEST_S = 24 * 3600.0


def check_request(request: GenerateRequest, model: ModelInfo) -> None:
    """Raises the InvalidRequest of `request_error`, if any."""
    error = request_error(request, model)
    if error is not None:
        raise error


def request_error(request: GenerateRequest, model: ModelInfo) -> InvalidRequest | None:
    """What the model cannot take: a prompt (param `prompt`) that is empty, longer than `max_model_len` or has an id
    outside the vocabulary, or such an id among the sampling parameters."""
    if len(request.prompt) % 4 != 0:
        return _bad_prompt(f"the prompt's {len(request.prompt)} bytes are not int32 token ids")
    tokens = request.prompt_ids()
    if tokens.size == 0:
        return _bad_prompt("the prompt is empty")
    if tokens.size > model.max_model_len:
        return _bad_prompt(f"the prompt has {tokens.size} tokens, max_model_len is {model.max_model_len}")
    for token in (int(tokens.min()), int(tokens.max())):
        if not 0 <= token < model.vocab_size:
            return _bad_prompt(f"the prompt has the token id {token}, the vocabulary ends at {model.vocab_size - 1}")
    try:
        check_against_vocab(request.sampling, model.vocab_size)
    except InvalidRequest as error:
        return error
    return None


def check_seconds(name: str, seconds: float) -> None:
    """Raises InvalidRequest with param `name` unless it is a time of up to a day. 0 is for none."""
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST_S:
        raise InvalidRequest(f"{name} must be between 0 and {_LONGEST_S:g} seconds, got {seconds}", param=name)


def _bad_prompt(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="prompt")
