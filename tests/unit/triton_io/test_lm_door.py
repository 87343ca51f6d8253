"""The LM's door and the options that the tokenizer packs for it."""

from __future__ import annotations

from typing import Any

import pytest
from triton_python_backend_utils import Request

from triton_mblt.core.errors import InvalidRequest, MbltError, Unsupported
from triton_mblt.core.request import SequenceKey
from triton_mblt.core.sampling_params import SamplingDefaults, SamplingLimits
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.lm_request import Arrival, Door
from triton_mblt.triton_io.options import PACKED, Options, pack, read_options, unpack

IDS = {"input_ids": [1, 2, 3]}


def read(inputs: dict[str, Any], parameters: dict[str, Any] | None = None, **who: Any) -> Arrival:
    door = Door(SamplingDefaults(temperature=0.25), SamplingLimits())
    request = Request({**IDS, **inputs}, parameters=parameters, **who)
    return door.read(request, wire.identity(request), 5)


def test_a_request_becomes_one_frozen_value() -> None:
    flags = {"stream": True, "return_logprobs": True}
    arrival = read({"sampling_parameters": '{"top_k": 3}', **flags}, {"max_tokens": 4}, correlation_id="s", flags=1)
    turn = arrival.request
    assert (turn.handle, turn.request_id, turn.key) == (5, "r1", SequenceKey("str", "s"))
    assert (turn.start, turn.end) == (True, False)
    assert turn.prompt_ids().tolist() == [1, 2, 3]
    assert (turn.sampling.top_k, turn.sampling.max_tokens, turn.sampling.temperature) == (3, 4, 0.25)
    assert (turn.outputs.stream, turn.outputs.logprobs, turn.outputs.finish_reason) == (True, True, False)
    assert (arrival.lease_s, arrival.abort_token, arrival.errors_as_text) == (0.0, "", False)


def test_a_request_id_that_is_not_utf8_is_shown_all_the_same() -> None:
    class Bound(Request):
        def request_id(self) -> str:
            return b"x\xff".decode()  # as the real binding does

    assert wire.identity(Bound({})).request_id == "x\ufffd"


def test_numbers_and_texts_are_different_sequences() -> None:
    assert read({}, correlation_id=5).request.key != read({}, correlation_id="5").request.key


def test_every_request_has_a_seed() -> None:
    assert read({}).request.sampling.seed != read({}).request.sampling.seed
    assert read({}, {"seed": 3}).request.sampling.seed == 3


def test_parameters_of_other_people_pass() -> None:
    read({}, {"x-request-start": "5", "triton_something": True, "session_id": "a", "prompt_mode": "full", "id": "r1"})


@pytest.mark.parametrize(
    ("text", "param"), [(b'{"max_tokens":5,"stop":"a\xed\xb0\x80"}', "stop"), (b'{"a\xff":1}', "a\\udcff")]
)
def test_a_parameter_that_is_not_utf8_is_named(text: bytes, param: str) -> None:
    class Bound(Request):
        def parameters(self) -> str:
            return text.decode()  # as the real binding does

    with pytest.raises(InvalidRequest, match="not UTF-8") as refused:
        wire.parameters(Bound({}))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("inputs", "parameters", "error", "param"),
    [
        ({}, {"max_tokns": 5}, InvalidRequest, "max_tokns"),
        ({}, {"prompt_mode": "append"}, Unsupported, "prompt_mode"),
        ({}, {"lease_s": "long"}, InvalidRequest, "lease_s"),
        ({}, {"abort_token": "x" * 257}, InvalidRequest, "abort_token"),
        ({"stream": True, "exclude_input_in_output": False}, {}, InvalidRequest, "exclude_input_in_output"),
        ({"sampling_parameters": b"\xff"}, {}, InvalidRequest, "sampling_parameters"),
        ({PACKED: b"\xff"}, {}, InvalidRequest, PACKED),
        ({PACKED: b'{"no": 1}'}, {}, InvalidRequest, PACKED),
    ],
)
def test_what_is_refused(
    inputs: dict[str, Any], parameters: dict[str, Any], error: type[MbltError], param: str
) -> None:
    with pytest.raises(error) as refused:
        read(inputs, parameters)
    assert refused.value.param == param


def test_the_tokenizers_refusal_comes_out_here_as_it_was() -> None:
    packed = pack(Options(error=Unsupported("no images", param="image").info("r1")))
    with pytest.raises(Unsupported, match="no images") as refused:
        read({PACKED: packed})
    assert refused.value.param == "image"


def test_packed_options_are_the_read_ones() -> None:
    given = {"stream": True, "exclude_input_in_output": True, "sampling_parameters": '{"stop": "ž"}'}
    options = read_options(Request({**given, "return_finish_reason": True, "return_token_ids": False}))
    assert unpack(pack(options)) == options
    assert options.sampling_parameters == '{"stop": "ž"}'
    assert (options.return_finish_reason, options.return_token_ids) == (True, False)


@pytest.mark.parametrize(
    ("stream", "exclude", "by_default", "echoes"),
    [
        (False, None, True, True),
        (False, None, False, False),
        (False, False, False, True),
        (False, True, True, False),
        (True, None, True, False),
        (True, True, True, False),
    ],
)
def test_the_rule_of_the_echo(stream: bool, exclude: bool | None, by_default: bool, echoes: bool) -> None:
    assert Options(stream=stream, exclude_input_in_output=exclude).echoes(by_default) is echoes


def test_the_echo_leads_the_answer_only_when_wanted() -> None:
    assert read({"prompt_text": "abc"}).echo == "abc"
    assert read({"prompt_text": "abc", "exclude_input_in_output": True}).echo == ""
    assert read({"prompt_text": "abc", "stream": True}).echo == ""
