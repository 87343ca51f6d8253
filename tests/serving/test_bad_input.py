"""Nonsense is refused on every entry with the field's name and one final response, and disturbs nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lm_control import Control, Refused
from triton_calls import Reply, Stream, http_events
from triton_server import TritonServer

from triton_mblt.core.errors import parse_error

pytestmark = pytest.mark.e2e

ENTRIES = ("mblt", "mblt_ensemble")
HI: dict[str, Any] = {"text": "hi"}
OF_THE_PROMPT: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"text": ""}, "text_input"),
    "none": ({}, "text_input"),
    "both": ({"text": "hi", "messages": [{"role": "user", "content": "hi"}]}, "text_input"),
    "one megabyte": ({"text": "x" * 1_000_000}, "prompt"),
    "longer than the cache": ({"text": "ab " * 400}, "prompt"),
    "more bytes than allowed": ({"text": "x" * (8 * 1024 * 1024 + 1)}, "text_input"),
    "an encoded lone surrogate": ({"text": b"a\xed\xa0\x80"}, "text_input"),
    "not UTF-8": ({"text": b"\xff"}, "text_input"),
    "messages that are no JSON": ({"messages": "[{"}, "messages"),
    "messages that are no list": ({"messages": "{}"}, "messages"),
    "no messages": ({"messages": []}, "messages"),
    "a message with a lone surrogate": (
        {"messages": r'[{"role": "user", "content": "\ud800"}]'},
        "messages[0].content",
    ),
    "a message of nobody": ({"messages": [{"role": "nobody", "content": "hi"}]}, "messages[0].role"),
    "an image": ({**HI, "image": "aGk="}, "image"),
    "an echo in a stream": ({**HI, "stream": True, "exclude_input_in_output": False}, "exclude_input_in_output"),
}
OF_THE_REST: dict[str, tuple[dict[str, Any], str]] = {
    "half a JSON": ({"sampling": "{max_tokens: 5"}, "sampling_parameters"),
    "a list": ({"sampling": "[]"}, "sampling_parameters"),
    "null": ({"sampling": "null"}, "sampling_parameters"),
    "a string": ({"sampling": '""'}, "sampling_parameters"),
    "nothing": ({"sampling": ""}, "sampling_parameters"),
    "sampling that is not UTF-8": ({"sampling_parameters": b"\xff"}, "sampling_parameters"),
    "a word for a number": ({"sampling": {"temperature": "hot"}}, "temperature"),
    "an unknown field": ({"sampling": {"no_such": 1}}, "no_such"),
    "too much": ({"sampling": {"top_p": 1.5}}, "top_p"),
    "a word outside the vocabulary": ({"sampling": {"allowed_token_ids": [100_000]}}, "allowed_token_ids"),
    "a surrogate in a stop string": ({"sampling": r'{"stop": ["\ud800"]}'}, "stop"),
    "several answers": ({"sampling": {"n": 2}}, "n"),
    "a misspelt parameter": ({"parameters": {"max_tokns": 5}}, "max_tokns"),
    "a mistyped parameter": ({"parameters": {"max_tokens": "five"}}, "max_tokens"),
    "a lease that is no number": ({"parameters": {"lease_s": "long"}}, "lease_s"),
    "a negative lease": ({"parameters": {"lease_s": -1}}, "lease_s"),
    "a token that is no string": ({"parameters": {"abort_token": 5}}, "abort_token"),
    "append mode": ({"parameters": {"prompt_mode": "append"}}, "prompt_mode"),
}
UNSUPPORTED = {"image", "n", "prompt_mode"}


def check(reply: Reply, param: str) -> None:
    info = reply.info
    assert info.param == param
    assert info.code == ("UNSUPPORTED" if param in UNSUPPORTED else "INVALID_ARG")
    assert (info.request_id, reply.finals, reply.responses) == (reply.request_id, 1, [])


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("case", OF_THE_PROMPT)
def test_a_bad_prompt(stream: Stream, entry: str, case: str) -> None:
    fields, param = OF_THE_PROMPT[case]
    check(stream.ask(entry, **{} if entry == "mblt" else {"sequence": case}, **fields), param)


@pytest.mark.parametrize("entry", [*ENTRIES, "lm"])
@pytest.mark.parametrize("case", OF_THE_REST)
def test_bad_sampling_and_parameters(stream: Stream, entry: str, case: str) -> None:
    fields, param = OF_THE_REST[case]
    place: dict[str, Any] = {} if entry == "mblt" else {"sequence": case}
    check(stream.ask(entry, **({"ids": [5]} if entry == "lm" else HI), **place, **fields), param)


@pytest.mark.parametrize("ids", [[], [100_000], [-1], [5] * 513], ids=["none", "high", "negative", "many"])
def test_bad_token_ids(stream: Stream, ids: list[int]) -> None:
    check(stream.ask("lm", ids=ids, sequence=9), "prompt")


def test_a_packed_value_of_somebody_else(stream: Stream) -> None:
    check(stream.ask("lm", ids=[5], sequence=9, request_options=b"\x01"), "request_options")


def test_the_limit_is_in_the_message(stream: Stream) -> None:
    assert "max_model_len is 512" in stream.ask("mblt", text="ab " * 400).error
    assert "max_prompt_bytes is 8388608" in stream.ask("mblt", text="x" * 8_388_609).error


def test_a_refused_turn_does_not_end_its_sequence(stream: Stream) -> None:
    """Also when the tokenizer refuses it: Triton would refuse every later turn, had the LM not seen the first."""
    first = stream.ask("mblt_ensemble", text=b"\xff", sequence="kept", end=False)
    second = stream.ask("mblt_ensemble", text="hi", sequence="kept", start=False, sampling={"max_tokens": 2})
    assert first.info.param == "text_input"
    assert (second.error, second.finals) == ("", 1)


def test_nul_is_ordinary_text(stream: Stream) -> None:
    reply = stream.ask("mblt", text="a\0b", sampling={"max_tokens": 2})
    assert reply.text.startswith("a\0b")


def test_an_undeclared_tensor_is_named(stream: Stream) -> None:
    """C115: Triton's own door."""
    for name in ("bad_words", "stop_words", "end_id", "top_k"):
        assert name in stream.ask("mblt", text="hi", **{name: "1"}).error


def test_a_sequence_without_its_start_is_refused_by_triton(stream: Stream) -> None:
    assert "START" in stream.ask("mblt_ensemble", text="hi", sequence="unknown", start=False).error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_input": ""}, "text_input"),
        ({"text_input": "hi", "sampling_parameters": "{max_tokens: 5"}, "sampling_parameters"),
        ({"text_input": "hi", "temperature": "hot"}, "temperature"),
        ({"text_input": "hi", "image": "aGk="}, "image"),
        ({"text_input": "hi", "stop": "\udc00"}, "stop"),
    ],
)
def test_generate_answers_400(server: TritonServer, body: dict[str, Any], param: str) -> None:
    status, text = server.post("/v2/models/mblt/generate", body)
    info = parse_error(json.loads(text)["error"])
    assert info is not None
    assert (status, info.param) == (400, param)


def test_generate_takes_an_id_and_names_it_in_errors(server: TritonServer) -> None:
    assert server.post("/v2/models/mblt/generate", {"text_input": "hi", "max_tokens": 2, "id": "mine"})[0] == 200
    for given, shown, param in (("mine", "mine", "text_input"), ("x\udc00", "x\ufffd\ufffd\ufffd", "id")):
        _, text = server.post("/v2/models/mblt/generate", {"text_input": "", "id": given})
        info = parse_error(json.loads(text)["error"])
        assert info is not None
        assert (info.param, info.request_id) == (param, shown)


def test_generate_stream_answers_400_with_an_event(server: TritonServer) -> None:
    status, text = server.post("/v2/models/mblt/generate_stream", {"text_input": "hi", "stream": True, "top_p": 2})
    (event,) = http_events(iter(text.splitlines()))
    info = parse_error(event["error"])
    assert info is not None
    assert (status, info.param) == (400, "top_p")


def test_other_streams_and_shared_memory_are_untouched(server: TritonServer, stream: Stream, control: Control) -> None:
    sampling = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}
    alone = stream.ask("mblt", text="a quiet one", sampling=sampling).text
    before = shared_memory(server)
    quiet = stream.send("mblt", text="a quiet one", sampling=sampling)
    for fields in [*(f for f, _ in OF_THE_PROMPT.values()), *({**HI, **f} for f, _ in OF_THE_REST.values())]:
        assert stream.ask("mblt", **fields).error
    assert quiet.wait().text == alone
    assert shared_memory(server) == before


def shared_memory(server: TritonServer) -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"triton-mblt-{server.launcher_pid}-*")}


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{", "request"),
        ("[]", "request"),
        ('{"verb": "dance"}', "request"),
        ('{"verb": "stats", "colour": 1}', "request"),
        ('{"verb": "abort"}', "sequence_id"),
        ('{"verb": "profile"}', "verb"),
        ('{"verb": "drain"}', "admin_key"),
        ('{"verb": "drain", "admin_key": "guess"}', "admin_key"),
    ],
)
def test_bad_control_requests(control: Control, text: str, param: str) -> None:
    with pytest.raises(Refused) as refused:
        control.send(text)
    info = parse_error(str(refused.value))
    assert info is not None
    assert info.param == param
