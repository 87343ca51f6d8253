"""The one parser of sampling parameters: what it takes, what it refuses and how it names it."""

from __future__ import annotations

import json

import msgspec
import pytest

from triton_mblt.core.errors import InvalidRequest, MbltError, Unsupported
from triton_mblt.core.sampling_params import (
    SAMPLING_FIELDS,
    SamplingDefaults,
    SamplingLimits,
    SamplingParams,
    check_against_vocab,
    parse_sampling,
)


def parse(fields=None, parameters=None, defaults=None, **limits):
    text = fields if fields is None or isinstance(fields, str) else json.dumps(fields)
    return parse_sampling(text, parameters or {}, defaults or SamplingDefaults(), SamplingLimits(**limits))


def changed(params):
    neutral = msgspec.structs.asdict(SamplingParams())
    return {name: value for name, value in msgspec.structs.asdict(params).items() if value != neutral[name]}


def refusal(kind=InvalidRequest, **call):
    with pytest.raises(kind) as caught:
        parse(**call)
    return caught.value


def test_nothing_asked_gives_vllm_s_defaults():
    assert parse() == parse("{}") == SamplingParams()
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.max_tokens) == (1.0, 1.0, 0, 0.0, None)


@pytest.mark.parametrize(
    ("field", "sent", "got"),
    [
        ("max_tokens", "16", 16),  # genai-perf writes numbers as JSON strings
        ("min_tokens", "16", 16),
        ("max_tokens", 16.0, 16),
        ("max_tokens", " 16 ", 16),
        ("max_tokens", "1e2", 100),
        ("temperature", "0.7", 0.7),
        ("temperature", 0, 0.0),
        ("top_p", 0.25, 0.25),
        ("top_k", -1, 0),
        ("top_k", "50", 50),
        ("min_p", 1, 1.0),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("seed", "18446744073709551615", 2**64 - 1),
        ("seed", -5, 2**64 - 5),
        ("seed", -1, None),
        ("stop", "END", ("END",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", "", ()),
        ("stop", ["", "END"], ("END",)),
        ("stop", [], ()),
        ("stop", ["a", "b", "c", "d", "e"], ("a", "b", "c", "d", "e")),
        ("stop_token_ids", [13, "14"], (13, 14)),
        ("stop_token_ids", 13, (13,)),
        ("bad_words", ["London"], ("London",)),
        ("ignore_eos", "true", True),
        ("ignore_eos", 1, True),
        ("include_stop_str_in_output", "True", True),
        ("skip_special_tokens", "false", False),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", "2", 2.0),
        ("repetition_penalty", 1.8, 1.8),
        ("logit_bias", {"50": 1.5, "7": "-100"}, ((7, -100.0), (50, 1.5))),
        ("allowed_token_ids", [3, 1], (3, 1)),
        ("logprobs", 0, 0),
        ("logprobs", 20, 20),
        ("prompt_logprobs", "3", 3),
        ("n", 1, 1),
        ("priority", -3, -3),
    ],
)
def test_values_are_converted(field, sent, got):
    assert getattr(parse({field: sent}), field) == got


@pytest.mark.parametrize("field", sorted(SAMPLING_FIELDS))
def test_null_equals_absent(field):
    assert parse({field: None}) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "sent", "said"),
    [
        ("max_tokens", 0, "from 1"),
        ("max_tokens", "lots", "whole number"),
        ("max_tokens", 1.5, "whole number"),
        ("max_tokens", True, "whole number"),
        ("max_tokens", "", "whole number"),
        ("max_tokens", "1_000", "whole number"),
        ("max_tokens", "+-3", "whole number"),
        ("max_tokens", "٣", "whole number"),
        ("max_tokens", "9" * 100_000, "whole number"),
        ("max_tokens", 10**300, "2147483647"),
        ("max_tokens", [5], "whole number"),
        ("min_tokens", -1, "0"),
        ("temperature", "hot", "number from 0"),
        ("temperature", -0.1, "number from 0"),
        ("temperature", "nan", "number from 0"),
        ("temperature", "inf", "number from 0"),
        ("temperature", {}, "number from 0"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 1.0001, "above 0 and at most 1"),
        ("top_k", -2, "-1"),
        ("min_p", 1.5, "from 0 to 1"),
        ("seed", 2**64, "18446744073709551615"),
        ("seed", -(2**63) - 1, "-9223372036854775808"),
        ("stop", 5, "list of strings"),
        ("stop", ["a", None], "string"),
        ("stop", ["x" * 1025], "1024"),
        ("stop", ["x"] * 65, "64"),
        ("stop", "\ud800", "surrogate"),
        ("stop_token_ids", [-1], "at least 0"),
        ("stop_token_ids", "a", "whole number"),
        ("bad_words", [["a"]], "string"),
        ("ignore_eos", "maybe", "true or false"),
        ("ignore_eos", 2, "true or false"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -2.1, "from -2 to 2"),
        ("repetition_penalty", 0, "0.01"),
        ("logit_bias", {"-1": 5}, "at least 0"),
        ("logit_bias", {"1": 101}, "from -100 to 100"),
        ("logit_bias", {"a": 1}, "whole number"),
        ("logit_bias", [1], "object"),
        ("logit_bias", {str(n): 1 for n in range(1025)}, "1024"),
        ("allowed_token_ids", [], "at least one"),
        ("logprobs", 21, "from 0 to 20"),
        ("logprobs", -1, "from 0 to 20"),
        ("prompt_logprobs", 21, "from 0 to 20"),
        ("n", 0, "whole number from 1"),
        ("priority", 1.5, "whole number"),
    ],
)
def test_nonsense_is_refused_by_name_and_limit(field, sent, said):
    error = refusal(fields={field: sent})
    assert error.param == field
    assert error.message.startswith(field)
    assert said in error.message
    assert len(error.message) < 250
    error.info().message.encode()  # nothing in it breaks the wire


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{max_tokens: 5", "near '{max_tokens"),
        ("[]", "JSON object"),
        ("null", "JSON object"),
        ('""', "JSON object"),
        ("5", "JSON object"),
        ("", "valid JSON"),
        ('{"temperature": NaN}', "NaN"),
        ('{"temperature": -Infinity}', "-Infinity"),
        ("[" * 100_000, "valid JSON"),
        ('{"max_tokens": ' + "9" * 5000 + "}", "JSON"),
        ('{"stop": "' + "x" * (1 << 20) + '"}', "characters"),
    ],
)
def test_broken_json_is_quoted(text, said):
    error = refusal(fields=text)
    assert error.param in ("sampling_parameters", "max_tokens")
    assert said in error.message
    assert len(error.message) < 300


def test_an_overflowing_number_names_its_field():
    assert refusal(fields='{"temperature": 1e999}').param == "temperature"


def test_unknown_keys_are_refused_by_name():
    error = refusal(fields={"no_such": 1})
    assert error.param == "no_such"
    assert "no_such" in error.message
    refusal(fields='{"\\ud800": 1}').info().param.encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1},
        {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False},
        {"spaces_between_special_tokens": True, "detokenize": True},
        {"best_of": "1", "length_penalty": "1.0", "use_beam_search": "false"},
    ],
)
def test_vllm_fields_that_ask_for_nothing_are_ignored(fields):
    assert parse(fields) == SamplingParams()
    assert parse(parameters=fields) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("n", 2),
        ("best_of", 2),
        ("best_of", True),
        ("use_beam_search", True),
        ("length_penalty", 0.5),
        ("detokenize", False),
        ("truncate_prompt_tokens", 5),
        ("guided_json", {"type": "object"}),
        ("guided_choice", ["a"]),
        ("structured_outputs", {"json": {}}),
        ("logits_processors", ["x"]),
        ("lora_name", "poet"),
    ],
)
def test_what_this_server_cannot_do_is_unsupported(field, sent):
    assert refusal(Unsupported, fields={field: sent}).param == field


def test_json_wins_over_parameters_which_win_over_defaults():
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, max_tokens=100)
    parameters = {"temperature": 0.5, "top_p": "0.8", "max_tokens": 5, "stream": True, "session_id": "x", "lease_s": 5}
    params = parse({"temperature": 0, "top_p": None}, parameters, defaults)
    assert changed(params) == {"temperature": 0.0, "top_p": 0.8, "top_k": 20, "max_tokens": 5}


def test_a_request_may_go_back_to_neutral_from_a_default():
    defaults = SamplingDefaults(repetition_penalty=1.3, top_k=20)
    assert parse({"repetition_penalty": 1.0, "top_k": 0}, None, defaults) == SamplingParams()


def test_a_parameter_overridden_by_json_is_not_checked():
    assert parse({"temperature": 0.5}, {"temperature": "hot"}).temperature == 0.5
    assert refusal(fields={"temperature": None}, parameters={"temperature": "hot"}).param == "temperature"


def test_min_tokens_above_max_tokens_is_refused():
    assert refusal(fields={"min_tokens": 5, "max_tokens": 4}).param == "min_tokens"
    assert parse({"min_tokens": 4, "max_tokens": 4}).min_tokens == 4


def test_logprobs_without_a_bound_allow_the_whole_vocabulary():
    assert parse({"logprobs": -1}, max_logprobs=-1).logprobs == -1
    assert parse({"logprobs": 5000}, max_logprobs=-1).logprobs == 5000
    assert refusal(fields={"logprobs": -2}).param == "logprobs"


def test_defaults_come_from_generation_config():
    config = {"do_sample": False, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 64}
    defaults = SamplingDefaults.from_generation_config(config)
    assert defaults == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, max_tokens=64)
    assert SamplingDefaults.from_generation_config({"top_p": None}) == SamplingDefaults()
    with pytest.raises(InvalidRequest, match="top_p"):
        SamplingDefaults.from_generation_config({"top_p": 2})


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [
        ({}, False),
        ({"temperature": 0.0}, True),
        ({"temperature": 9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
    ],
)
def test_greedy_is_no_temperature_or_one_word(fields, greedy):
    assert parse(fields).greedy is greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"999999999": 5}),
        ("stop_token_ids", [999999999]),
        ("allowed_token_ids", [5, 100]),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_field(field, value):
    params = parse({field: value})
    with pytest.raises(InvalidRequest) as caught:
        check_against_vocab(params, 100)
    assert caught.value.param == field
    assert "100" in caught.value.message
    check_against_vocab(params, 1_000_000_000)


def test_parameters_cross_the_pipe_unchanged():
    params = parse({"logit_bias": {"5": 1}, "stop": ["a"], "seed": -2, "allowed_token_ids": [1], "logprobs": 2})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize("value", ["x", "", "5", 5, -5, 2.5, True, False, "true", "nan", 10**30, 1e30])
@pytest.mark.parametrize("field", sorted(SAMPLING_FIELDS))
def test_any_scalar_parameter_gives_a_value_or_an_error_of_ours(field, value):
    blamed = field
    try:
        params = parse(parameters={field: value})
    except MbltError as error:
        blamed, params = error.param, SamplingParams()
    assert blamed == field
    assert isinstance(params, SamplingParams)
