from __future__ import annotations

import json
from typing import Any

import pytest

from triton_mblt.core.errors import MbltError
from triton_mblt.text.messages import ImagePart, Message, TextPart, ToolCall, parse_messages, parse_tools

USER = {"role": "user", "content": "hi"}


def test_parses_every_field() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "Praha"}'}}
    assistant = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [call],
        "refusal": None,
        "annotations": [],
    }
    tool = {"role": "tool", "content": "10:05", "tool_call_id": "c1", "name": "clock"}
    assert parse_messages(json.dumps([USER, assistant, tool])) == (
        Message("user", "hi"),
        Message("assistant", reasoning_content="hm", tool_calls=(ToolCall("clock", {"zone": "Praha"}, "c1"),)),
        Message("tool", "10:05", name="clock", tool_call_id="c1"),
    )


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_equal_the_plain_string(role: str) -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": ""}, {"type": "text", "text": "kind"}]
    plain = parse_messages(json.dumps([{"role": role, "content": "Be kind"}]))
    assert parse_messages(json.dumps([{"role": role, "content": parts}])) == plain


def test_images_keep_their_place() -> None:
    content = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "image"},
        {"type": "text", "text": "c"},
    ]
    (message,) = parse_messages(json.dumps([{"role": "user", "content": content}]))
    assert message.content == (
        TextPart("ab"),
        ImagePart("data:image/png;base64,AA==", "low"),
        ImagePart(),
        TextPart("c"),
    )
    assert len(message.images) == 2
    assert [part["type"] for part in message.for_template()["content"]] == ["text", "image", "image", "text"]


def test_nul_and_escaped_surrogate_pairs_are_text() -> None:
    (message,) = parse_messages('[{"role": "user", "content": "a\\u0000\\ud83d\\ude00"}]')
    assert message.content == "a\0😀"


REFUSED: list[tuple[Any, str, str]] = [
    ("{", "messages", "INVALID_ARG"),
    ("[" * 100_000, "messages", "INVALID_ARG"),
    ('[{"role": "user", "content": NaN}]', "messages", "INVALID_ARG"),
    ("a\ud800", "messages", "INVALID_ARG"),
    ([], "messages", "INVALID_ARG"),
    ({"role": "user"}, "messages", "INVALID_ARG"),
    (["hi"], "messages[0]", "INVALID_ARG"),
    ([USER, {"role": "wizard", "content": "x"}], "messages[1].role", "INVALID_ARG"),
    ([USER, {"role": ["user"], "content": "x"}], "messages[1].role", "INVALID_ARG"),
    ([USER, {"content": "x"}], "messages[1].role", "INVALID_ARG"),
    ([USER, USER, {"role": "user", "content": 5}], "messages[2].content", "INVALID_ARG"),
    ([USER, USER, {"role": "user", "content": "x\ud800"}], "messages[2].content", "INVALID_ARG"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "INVALID_ARG"),
    ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "INVALID_ARG"),
    ([{"role": "user", "content": [7]}], "messages[0].content[0]", "INVALID_ARG"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type", "UNSUPPORTED"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].image_url", "INVALID_ARG"),
    ([{"role": "user", "content": "x", "name": 1}], "messages[0].name", "INVALID_ARG"),
    ([{**USER, "tool_calls": [{"function": {"name": "f"}}]}], "messages[0].tool_calls", "INVALID_ARG"),
    ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls", "INVALID_ARG"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]", "INVALID_ARG"),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}],
        "messages[0].tool_calls[0].function.name",
        "INVALID_ARG",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        "messages[0].tool_calls[0].function.arguments",
        "INVALID_ARG",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"\ud800": 1}}}]}],
        "messages[0].tool_calls[0].function.arguments",
        "INVALID_ARG",
    ),
]


@pytest.mark.parametrize(("value", "param", "code"), REFUSED)
def test_refusals_name_the_place(value: Any, param: str, code: str) -> None:
    with pytest.raises(MbltError) as error:
        parse_messages(value if isinstance(value, str) else json.dumps(value))
    assert (error.value.param, error.value.code) == (param, code)


@pytest.mark.parametrize(
    ("value", "param"),
    [({}, "tools"), ([1], "tools[0]"), ([{"function": {}}], "tools[0].function.name"), ([{"type": "x"}], "tools[0]")],
)
def test_tools_are_checked(value: Any, param: str) -> None:
    with pytest.raises(MbltError) as error:
        parse_tools(json.dumps(value))
    assert error.value.param == param


def test_tools_pass_as_they_are() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}, "extra": True}
    assert parse_tools(json.dumps([tool])) == (tool,)
