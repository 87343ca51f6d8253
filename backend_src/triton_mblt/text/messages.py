"""Chat messages: from a caller's JSON to frozen types, and from those to what a template sees.

Owns the accepted shape of a message (OpenAI's, plus `reasoning_content`). Fields that OpenAI's own responses carry
and no template needs are ignored. Does not know templates or tokens.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from triton_mblt.core.errors import InvalidRequest, Unsupported

ROLES = ("system", "developer", "user", "assistant", "tool")


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """An image's place in the text. `url` is http(s):, data: or "" when the image comes in a tensor of its own."""

    url: str = ""
    detail: str = "auto"


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is the parsed object, whether the caller sent an object or its JSON text."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


class Message(msgspec.Struct, frozen=True):
    """`content` is a string unless the message has images; null, missing and empty content are all ""."""

    role: str
    content: str | tuple[TextPart | ImagePart, ...] = ""
    name: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return () if isinstance(self.content, str) else tuple(p for p in self.content if isinstance(p, ImagePart))

    def for_template(self) -> dict[str, Any]:
        """The object that chat templates expect; optional fields appear only when set."""
        shown: dict[str, Any] = {"role": self.role}
        if isinstance(self.content, str):
            shown["content"] = self.content
        else:
            shown["content"] = [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in self.content
            ]
        for field in ("name", "reasoning_content", "tool_call_id"):
            if value := getattr(self, field):
                shown[field] = value
        if self.tool_calls:
            shown["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        return shown


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    head = {"id": call.id} if call.id else {}
    return {**head, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def parse_messages(json_text: str | bytes, param: str = "messages") -> tuple[Message, ...]:
    """Errors: InvalidRequest or Unsupported whose param names the place, for example `messages[2].content`."""
    return read_messages(_parse_json(json_text, param), param)


def parse_tools(json_text: str | bytes, param: str = "tools") -> tuple[dict[str, Any], ...]:
    """Errors: InvalidRequest whose param names the place."""
    return read_tools(_parse_json(json_text, param), param)


def read_messages(value: object, param: str = "messages") -> tuple[Message, ...]:
    """As `parse_messages`, from decoded JSON."""
    if not isinstance(value, list) or not value:
        _refuse(param, "must be a non-empty list of messages")
    return tuple(_read_message(entry, f"{param}[{index}]") for index, entry in enumerate(value))


def read_tools(value: object, param: str = "tools") -> tuple[dict[str, Any], ...]:
    """Tool schemas as the template gets them. Errors: InvalidRequest whose param names the place."""
    if not isinstance(value, list):
        _refuse(param, "must be a list of tool objects")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            _refuse(f"{param}[{index}]", 'must be an object {"type": "function", "function": {...}}')
        _text(function.get("name"), f"{param}[{index}].function.name", empty=False)
        _check_unicode(tool, f"{param}[{index}]")
    return tuple(value)


def _parse_json(json_text: str | bytes, param: str) -> object:
    # Not msgspec: it calls an escaped lone surrogate truncated input, and the field could not be named.
    try:
        value: object = json.loads(json_text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is no valid JSON: {error}", param=param) from error
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _read_message(value: object, at: str) -> Message:
    if not isinstance(value, dict):
        _refuse(at, "must be an object with role and content")
    role = value.get("role")
    if role not in ROLES:
        _refuse(f"{at}.role", f"must be one of {', '.join(ROLES)}, not {_shown(role)}")
    reasoning = value.get("reasoning_content", value.get("reasoning"))
    message = Message(
        role=role,
        content=_read_content(value.get("content"), f"{at}.content"),
        name=_text(value.get("name"), f"{at}.name"),
        reasoning_content=_text(reasoning, f"{at}.reasoning_content"),
        tool_calls=_read_calls(value.get("tool_calls"), f"{at}.tool_calls"),
        tool_call_id=_text(value.get("tool_call_id"), f"{at}.tool_call_id"),
    )
    if message.tool_calls and role != "assistant":
        _refuse(f"{at}.tool_calls", "only an assistant message has tool calls")
    return message


def _read_content(value: object, at: str) -> str | tuple[TextPart | ImagePart, ...]:
    """Neighbouring text parts are joined as they are, so parts and plain strings give the same prompt."""
    if not isinstance(value, list):
        return _text(value, at, what="a string or a list of parts")
    parts: list[TextPart | ImagePart] = []
    for index, entry in enumerate(value):
        part = _read_part(entry, f"{at}[{index}]")
        last = parts[-1] if parts else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            parts[-1] = TextPart(last.text + part.text)
        else:
            parts.append(part)
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return tuple(parts)


def _read_part(value: object, at: str) -> TextPart | ImagePart:
    if isinstance(value, str):
        return TextPart(_text(value, at))
    if not isinstance(value, dict):
        _refuse(at, 'must be an object such as {"type": "text", "text": ...}')
    kind = value.get("type")
    if kind == "text":
        return TextPart(_text(value.get("text"), f"{at}.text", empty=None))
    if kind in ("image_url", "image"):
        return _read_image(value.get(kind), f"{at}.{kind}", kind == "image_url")
    if isinstance(kind, str):
        raise Unsupported(f"{at}.type: parts of type {_shown(kind)} are not served", param=f"{at}.type")
    _refuse(f"{at}.type", "must be text or image_url")


def _read_image(value: object, at: str, needs_url: bool) -> ImagePart:
    if isinstance(value, dict):
        detail = _text(value.get("detail"), f"{at}.detail") or "auto"
        return ImagePart(_text(value.get("url"), f"{at}.url", empty=False), detail)
    return ImagePart(_text(value, at, empty=None if needs_url else True))


def _read_calls(value: object, at: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        _refuse(at, "must be a list")
    return tuple(_read_call(entry, f"{at}[{index}]") for index, entry in enumerate(value))


def _read_call(value: object, at: str) -> ToolCall:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(function, dict):
        _refuse(at, 'must be an object {"id": ..., "type": "function", "function": {...}}')
    where = f"{at}.function.arguments"
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parse_json(arguments, where) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        _refuse(where, "must be an object or the JSON text of one")
    _check_unicode(arguments, where)
    name = _text(function.get("name"), f"{at}.function.name", empty=False)
    return ToolCall(name=name, arguments=arguments, id=_text(value.get("id"), f"{at}.id"))


def _text(value: object, at: str, *, empty: bool | None = True, what: str = "a string") -> str:
    """A string. empty: True takes null and "" alike, None takes "" but not null, False takes neither."""
    if value is None and empty:
        return ""
    if not isinstance(value, str):
        _refuse(at, f"must be {what}, not {_shown(value)}")
    if not value and empty is False:
        _refuse(at, "must not be empty")
    _check_unicode(value, at)
    return value


def _check_unicode(value: object, at: str) -> None:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{at} has a lone surrogate at character {error.start}", param=at) from error


def _shown(value: object) -> str:
    """A short rendering for messages; never the whole of a caller's data."""
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."


def _refuse(at: str, why: str) -> NoReturn:
    raise InvalidRequest(f"{at} {why}", param=at)
