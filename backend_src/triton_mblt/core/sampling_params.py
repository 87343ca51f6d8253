"""Sampling parameters: vLLM's names, one frozen type and the one parser behind every entry.

Owns the fields, their ranges and their precedence (docs/sampling.md is the users' page). Knows no tokenizer: what needs
the vocabulary's size is checked by `check_against_vocab`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from triton_mblt.core.errors import InvalidRequest, Unsupported
from triton_mblt.core.sampling_values import refuse, to_bias, to_bool, to_float, to_int, to_texts, to_token_ids

Scalar = str | int | float | bool

GREEDY_BELOW = 1e-5
ALL_WORDS = -1

_MAX_TEMPERATURE = 1000.0  # far above any use; keeps logits / temperature away from the ends of float32
_MAX_JSON_CHARACTERS = 1 << 20
_MAX_INT = 2**31 - 1
_RANDOM_SEED = -1


class SamplingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that a deployment may set. `max_logprobs` -1 means no bound, and then requests may ask for all words."""

    max_logprobs: int = 20
    max_stop_strings: int = 64
    max_text_characters: int = 1024
    max_token_ids: int = 65536
    max_bad_words: int = 1024
    max_logit_bias: int = 1024


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's generation_config.json says; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    @classmethod
    def from_generation_config(cls, config: Mapping[str, object]) -> SamplingDefaults:
        """Take the sampling values of a generation_config.json (its max_new_tokens becomes max_tokens).

        As in vLLM, `do_sample` is not looked at. Errors: InvalidRequest naming the value that is out of range.
        """
        limits = SamplingLimits()
        values = {}
        for name in cls.__struct_fields__:
            value = config.get("max_new_tokens" if name == "max_tokens" else name)
            if value is not None:
                values[name] = _FIELDS[name](name, value, limits)
        return cls(**values)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is sampled. Names and meaning are vLLM's; `max_tokens` None means what is left of the context,
    `seed` None means that the door draws one, `logprobs` None means none and -1 the whole vocabulary."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    n: int = 1
    priority: int = 0

    @property
    def greedy(self) -> bool:
        """True when the most likely word is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def _int(low: int, high: int = _MAX_INT) -> Callable[[str, object, SamplingLimits], int]:
    return lambda field, value, _limits: to_int(field, value, low, high)


def _float(low: float, high: float, low_open: bool = False) -> Callable[[str, object, SamplingLimits], float]:
    return lambda field, value, _limits: to_float(field, value, low, high, low_open=low_open)


def _bool(field: str, value: object, _limits: SamplingLimits) -> bool:
    return to_bool(field, value)


def _top_k(field: str, value: object, _limits: SamplingLimits) -> int:
    return max(to_int(field, value, -1, _MAX_INT), 0)


def _seed(field: str, value: object, _limits: SamplingLimits) -> int | None:
    seed = to_int(field, value, -(2**63), 2**64 - 1)
    return None if seed == _RANDOM_SEED else seed % 2**64


def _stop(field: str, value: object, limits: SamplingLimits) -> tuple[str, ...]:
    return to_texts(field, value, limits.max_stop_strings, limits.max_text_characters)


def _bad_words(field: str, value: object, limits: SamplingLimits) -> tuple[str, ...]:
    return to_texts(field, value, limits.max_bad_words, limits.max_text_characters)


def _token_ids(field: str, value: object, limits: SamplingLimits) -> tuple[int, ...]:
    return to_token_ids(field, value, limits.max_token_ids)


def _allowed(field: str, value: object, limits: SamplingLimits) -> tuple[int, ...]:
    ids = to_token_ids(field, value, limits.max_token_ids)
    if not ids:
        refuse(field, "a list of at least one token id", value)
    return ids


def _bias(field: str, value: object, limits: SamplingLimits) -> tuple[tuple[int, float], ...]:
    return to_bias(field, value, limits.max_logit_bias, 100.0)


def _logprobs(field: str, value: object, limits: SamplingLimits) -> int:
    if limits.max_logprobs == ALL_WORDS:
        return to_int(field, value, ALL_WORDS, _MAX_INT)
    return to_int(field, value, 0, limits.max_logprobs)


def _n(field: str, value: object, _limits: SamplingLimits) -> int:
    if to_int(field, value, 1, _MAX_INT) > 1:
        raise Unsupported("n must be 1: several answers to one request are not supported", param=field)
    return 1


_FIELDS: Mapping[str, Callable[[str, object, SamplingLimits], Any]] = {
    "max_tokens": _int(1),
    "min_tokens": _int(0),
    "temperature": _float(0.0, _MAX_TEMPERATURE),
    "top_p": _float(0.0, 1.0, low_open=True),
    "top_k": _top_k,
    "min_p": _float(0.0, 1.0),
    "seed": _seed,
    "stop": _stop,
    "stop_token_ids": _token_ids,
    "include_stop_str_in_output": _bool,
    "ignore_eos": _bool,
    "bad_words": _bad_words,
    "presence_penalty": _float(-2.0, 2.0),
    "frequency_penalty": _float(-2.0, 2.0),
    "repetition_penalty": _float(0.01, 100.0),
    "logit_bias": _bias,
    "allowed_token_ids": _allowed,
    "logprobs": _logprobs,
    "prompt_logprobs": _logprobs,
    "skip_special_tokens": _bool,
    "n": _n,
    "priority": _int(-_MAX_INT),
}

# vLLM fields that this server does not act on, with the values that ask for nothing. Any other value is Unsupported.
_WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "best_of": (1, "1"),
    "use_beam_search": (False, "false", "False"),
    "length_penalty": (1, "1", "1.0"),
    "early_stopping": (False, "false", "False"),
    "spaces_between_special_tokens": (True, "true", "True"),
    "detokenize": (True, "true", "True"),
    "flat_logprobs": (False,),
    "skip_reading_prefix_cache": (False,),
    "output_text_buffer_length": (0,),
    "logits_processors": ([],),
    "extra_args": ({},),
    "truncate_prompt_tokens": (),
    "output_kind": (),
    "lora_name": (),
    "guided_decoding": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "response_format": (),
}

SAMPLING_FIELDS = frozenset(_FIELDS) | frozenset(_WITHOUT_EFFECT)
"""All names that `parse_sampling` reads from request parameters; it leaves other parameters to their own readers."""


def parse_sampling(
    json_text: str | None,
    parameters: Mapping[str, Scalar],
    defaults: SamplingDefaults,
    limits: SamplingLimits,
) -> SamplingParams:
    """The sampling parameters of a request.

    Per field: `json_text` (the `sampling_parameters` input), else the request parameter of that name, else the model's
    default, else vLLM's. A JSON null equals absence. A key of the JSON that is no sampling field is an error;
    request parameters with other names are not looked at.
    Errors: InvalidRequest naming the field and its limit; Unsupported for vLLM fields that this server cannot honour.
    """
    asked: dict[str, object] = {name: value for name, value in parameters.items() if name in SAMPLING_FIELDS}
    if json_text is not None:
        asked.update({name: value for name, value in _decode(json_text).items() if value is not None})
    values = {name: value for name in defaults.__struct_fields__ if (value := getattr(defaults, name)) is not None}
    for name, value in asked.items():
        if name in _FIELDS:
            values[name] = _FIELDS[name](name, value, limits)
        elif not _is_one_of(value, _WITHOUT_EFFECT[name]):
            raise Unsupported(f"{name} is not supported here (got {str(value)[:60]!r})", param=name)
    params = SamplingParams(**values)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        refuse("min_tokens", f"at most max_tokens ({params.max_tokens})", params.min_tokens)
    return params


def check_against_vocab(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that the vocabulary [0, vocab_size) does not have. Errors: InvalidRequest naming the field."""
    id_fields = {
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "logit_bias": tuple(token for token, _ in params.logit_bias),
    }
    for field, ids in id_fields.items():
        for token in ids:
            if token >= vocab_size:
                refuse(field, f"made of token ids below the vocabulary's size {vocab_size}", token)


def _decode(text: str) -> dict[str, object]:
    """The JSON object in `text`, its keys checked. Errors: InvalidRequest quoting the place of the problem."""
    if len(text) > _MAX_JSON_CHARACTERS:
        raise _broken(f"at most {_MAX_JSON_CHARACTERS} characters long, not {len(text)}")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        near = text[max(error.pos - 10, 0) : error.pos + 20]
        raise _broken(f"valid JSON: {error.msg} at character {error.pos}, near {near!r}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; more digits than int() takes
        raise _broken(f"valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _broken(f'a JSON object such as {{"max_tokens": 16}}, not {text[:40]!r}')
    for name in value:
        if name not in SAMPLING_FIELDS:
            shown = name[:60].encode("ascii", "backslashreplace").decode()
            raise InvalidRequest(f"sampling_parameters has an unknown field '{shown}'", param=shown)
    return value


def _broken(problem: str) -> InvalidRequest:
    return InvalidRequest(f"sampling_parameters must be {problem}", param="sampling_parameters")


def _no_constant(name: str) -> NoReturn:
    raise _broken(f"valid JSON: {name} is not a number")


def _is_one_of(value: object, choices: tuple[object, ...]) -> bool:
    """Equality that keeps True and 1 apart."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)
