"""Renders messages through a package's own chat template, exactly as transformers' apply_chat_template does.

Owns the sandboxed environment and the limits. Templates come from the package, never from a request. What the sandbox
bounds: no access to Python internals, no changes of its arguments, range() up to 100,000. What this file adds: the
length of the output, and the time between two pieces of output. A template that multiplies strings or loops without
writing is not bounded; a package with such a template is as trusted as its weights. Does not know token ids.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from triton_mblt.core.errors import ConfigError, InvalidRequest, Unsupported
from triton_mblt.text.messages import Message
from triton_mblt.text.special_spelling import Shield
from triton_mblt.text.tokenizer import TextTokenizer

_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
) | frozenset({"chat_template", "tokenize", "raise_exception", "strftime_now"})
# What a template can raise on input it was not written for; jinja does not wrap Python's own errors.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_RENDER_LIMIT_S = 10.0


class RenderedChat:
    """A rendered prompt in which the caller's spellings of special tokens are still hidden."""

    def __init__(self, marked: str, shield: Shield) -> None:
        self._marked = marked
        self._shield = shield

    @property
    def text(self) -> str:
        """The prompt as transformers renders it."""
        return self._shield.reveal(self._marked)

    def encode(self, tokenizer: TextTokenizer) -> list[int]:
        """Ids in which only the template's special tokens are special. Errors: InvalidRequest(param="messages")."""
        return tokenizer.encode_guarded(self._marked, self._shield.reveal)


class ChatTemplate:
    """The templates of one package, compiled once; threads share it."""

    def __init__(self, tokenizer: TextTokenizer, *, render_limit_s: float = _RENDER_LIMIT_S) -> None:
        """A package without a template is no error until somebody renders.

        Errors: ConfigError for a broken template.
        """
        self._spelling = tokenizer.spelling
        self._special_tokens = dict(tokenizer.files.named)
        self._max_bytes = tokenizer.max_text_bytes
        self._render_limit_s = render_limit_s
        self._sources = tokenizer.files.templates
        environment = _environment()
        self._compiled = {name: _compile(environment, name, source) for name, source in self._sources.items()}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_images: bool = False,
    ) -> RenderedChat:
        """The prompt of a conversation.

        continue_final_message: the prompt ends inside the last message, so that the model goes on with it.
        template_kwargs: variables for the template, for example enable_thinking.
        Errors: InvalidRequest (no template; the template's own refusal; too long), Unsupported for images.
        """
        _check_options(add_generation_prompt, continue_final_message, template_kwargs or {})
        if not allow_images:
            _refuse_images(messages)
        name = self._choose(bool(tools))
        shield = Shield(self._spelling)
        shown = [shield.cover(message.for_template()) for message in messages]
        if "developer" not in self._sources[name]:
            for message in shown:  # OpenAI's newer name of the same role; templates that do not know it would drop it
                message["role"] = "system" if message["role"] == "developer" else message["role"]
        seam = _Seam(shown[-1]) if continue_final_message else None
        text = self._run(
            self._compiled[name],
            {
                "messages": shown,
                "tools": None if tools is None else shield.cover(list(tools)),
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **self._special_tokens,
                **shield.cover(dict(template_kwargs or {})),
            },
        )
        return RenderedChat(text if seam is None else seam.cut(text), shield)

    def _choose(self, with_tools: bool) -> str:
        if with_tools and "tool_use" in self._compiled:
            return "tool_use"
        if "default" in self._compiled:
            return "default"
        why = f"it only has {', '.join(self._compiled)}" if self._compiled else "it has no chat template"
        raise InvalidRequest(f"this model cannot take messages: {why}; send text_input", param="messages")

    def _run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Piece by piece, so that length and time are checked while it runs."""
        deadline = time.monotonic() + self._render_limit_s
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > self._max_bytes or time.monotonic() > deadline:
                    break
            else:
                return "".join(pieces)
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error
        limit = f"{self._max_bytes} bytes" if size > self._max_bytes else f"{self._render_limit_s:g} s"
        raise InvalidRequest(f"the rendered messages exceed the limit of {limit}", param="messages")


class _Seam:
    """Marks the end of the last message's text, and cuts the rendered prompt there (transformers' rule)."""

    _TAG = "0MBLTENDOFTHELASTTEXT0 "

    def __init__(self, final: dict[str, Any]) -> None:
        content = final["content"]
        if isinstance(content, str):
            self._text = content
            final["content"] = content + self._TAG
            return
        last = next((part for part in reversed(content) if part["type"] == "text"), None)
        if last is None:
            raise InvalidRequest("continue_final_message: the last message has no text", param="continue_final_message")
        self._text = last["text"]
        last["text"] += self._TAG

    def cut(self, rendered: str) -> str:
        place = rendered.rfind(self._TAG.strip())
        if place < 0 or self._text.strip() not in rendered:
            raise InvalidRequest(
                "continue_final_message: the chat template does not keep the final message",
                param="continue_final_message",
            )
        head = rendered[:place]
        return head if rendered.startswith(self._TAG, place) else head.rstrip()


def _check_options(generation_prompt: bool, continue_final: bool, template_kwargs: Mapping[str, Any]) -> None:
    if generation_prompt and continue_final:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message"
        )
    taken = sorted(_RESERVED.intersection(template_kwargs))
    if taken:
        raise InvalidRequest(f"chat_template_kwargs must not set {taken[0]}", param=f"chat_template_kwargs.{taken[0]}")


def _refuse_images(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if message.images:
            raise Unsupported("this model takes no images", param=f"messages[{index}].content")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compile(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat template {name!r}, line {error.lineno}: {error.message}", param="model") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML characters, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


class _GenerationTag(Extension):
    """{% generation %} marks assistant text for training; for serving its body stands for itself."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)
