"""The LM's door: a Triton request to a frozen GenerateRequest, with one rule per input and parameter.

Owns which request parameters exist. Limits of the loaded model are checked by the service.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from triton_mblt.core.errors import InvalidRequest, Unsupported, error_of
from triton_mblt.core.request import GenerateRequest, SequenceKey
from triton_mblt.core.sampling_params import (
    SAMPLING_FIELDS,
    SamplingDefaults,
    SamplingLimits,
    SamplingParams,
    Scalar,
    parse_sampling,
)
from triton_mblt.core.sampling_values import to_bool, to_float
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.options import PACKED, Options, read_options, unpack

ERRORS_AS_TEXT = "errors_as_text"
# "id": the generate endpoint gives the request's id as a parameter too.
_OWN_PARAMETERS = frozenset({"abort_token", "cache_salt", "lease_s", "session_id", "prompt_mode", ERRORS_AS_TEXT, "id"})
_LONGEST_TEXT = 256
_DAY_S = 24 * 3600.0


class Arrival(msgspec.Struct, frozen=True):
    """A request that passed the door. `echo` is text that leads the answer; `abort_token` "" means none, `lease_s` 0
    likewise. `errors_as_text`: the front needs an error of a running answer as a text (lm_answer.py says why)."""

    request: GenerateRequest
    echo: str
    abort_token: str
    lease_s: float
    errors_as_text: bool


class Door:
    """Reads requests of one deployment."""

    def __init__(self, defaults: SamplingDefaults, limits: SamplingLimits) -> None:
        self._defaults = defaults
        self._limits = limits

    def read(self, request: Any, who: wire.Identity, handle: int) -> Arrival:
        """Errors: InvalidRequest or Unsupported naming the input or parameter, and whatever the tokenizer refused."""
        options = _options(request)
        if options.error is not None:
            raise error_of(options.error)
        given = wire.parameters(request)
        _check_names(given)
        if given.get("prompt_mode", "full") != "full":
            raise Unsupported("prompt_mode must be full: the prompt is the whole conversation", param="prompt_mode")
        sampling = parse_sampling(options.sampling_parameters, given, self._defaults, self._limits)
        prompt = wire.ids_input(request, "input_ids")
        if prompt is None:
            raise InvalidRequest("input_ids is missing", param="input_ids")
        echo = _echo(request, options)
        return Arrival(
            request=GenerateRequest(
                handle=handle,
                request_id=who.request_id,
                key=SequenceKey.of(who.correlation_id),
                start=who.start,
                end=who.end,
                prompt=prompt,
                sampling=_seeded(sampling),
                outputs=options.outputs(exclude_input=echo == ""),
                cache_salt=_short_text(given, "cache_salt"),
            ),
            echo=echo,
            abort_token=_short_text(given, "abort_token"),
            lease_s=to_float("lease_s", given.get("lease_s", 0), 0.0, _DAY_S),
            errors_as_text=to_bool(ERRORS_AS_TEXT, given.get(ERRORS_AS_TEXT, False)),
        )


def _options(request: Any) -> Options:
    packed = wire.bytes_input(request, PACKED)
    return read_options(request) if packed is None else unpack(packed)


def _echo(request: Any, options: Options) -> str:
    """The tokenizer sends a prompt_text only when it is wanted; a direct caller may do the same."""
    text = wire.text_input(request, "prompt_text") or ""
    return text if options.echoes(by_default=True) else ""


def _check_names(given: Mapping[str, Scalar]) -> None:
    """A misspelt sampling field must not be ignored. Names with a dash are HTTP headers that the server was told to
    forward, those of Triton's own begin with its name."""
    for name in given:
        known = name in SAMPLING_FIELDS or name in _OWN_PARAMETERS
        if not known and "-" not in name and not name.startswith("triton_"):
            shown = name[:60].encode("ascii", "backslashreplace").decode()
            raise InvalidRequest(f"there is no parameter {shown!r}", param=shown)


def _short_text(given: Mapping[str, Scalar], name: str) -> str:
    text = given.get(name, "")
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
        raise InvalidRequest(f"{name} must be a string of up to {_LONGEST_TEXT} characters", param=name)
    return text


def _seeded(sampling: SamplingParams) -> SamplingParams:
    """With a seed in any case: all randomness of a request is drawn here, at the door."""
    return sampling if sampling.seed is not None else msgspec.structs.replace(sampling, seed=secrets.randbits(64))
