"""Triton model `tokenizer`: prompt or chat messages to token ids, in a pool, each sequence's answers in its order.

Owns the rules of the prompt inputs. Hands the other inputs through to the LM (options.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from triton_mblt.core.errors import InvalidRequest, MbltError, Overloaded, Unsupported
from triton_mblt.core.package import resolve_package
from triton_mblt.text.chat_template import ChatTemplate
from triton_mblt.text.messages import parse_messages
from triton_mblt.text.tokenizer import TextTokenizer
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.deployment import read_deployment
from triton_mblt.triton_io.options import PACKED, Options, pack, read_options
from triton_mblt.triton_io.ordered_pool import OrderedPool
from triton_mblt.triton_io.prompt_limit import PromptLimit, limit_of
from triton_mblt.triton_io.sender import Responder, guarded


class Prompt(msgspec.Struct, frozen=True):
    """What was asked, still as the caller's bytes. `refusal` is an error found before it was looked at."""

    text: bytes | None
    messages: bytes | None
    options: Options
    refusal: MbltError | None = None


class TokenizerModel:
    """One stub. `execute` reads the tensors and returns; encoding and sending happen on the pool's threads."""

    def initialize(self, args: Mapping[str, str]) -> None:
        try:
            deployment = read_deployment(args)
            settings = deployment.settings
            folder = resolve_package(settings.model, settings.revision)
            self._tokenizer = TextTokenizer.load(folder, max_text_bytes=settings.max_prompt_bytes)
            self._template = ChatTemplate(self._tokenizer)
        except MbltError as error:
            raise wire.load_error(error.info()) from error
        self._settings = settings
        self._limit = PromptLimit(self._tokenizer, partial(limit_of, deployment.lm))
        self._pool = OrderedPool(settings.tokenizer_threads, "mblt-tokenizer")
        self._numbers = iter(range(1, 2**63))

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            who = wire.identity(request)
            responder = Responder(request, who.request_id)
            guarded(responder, partial(self._accept, request, who, responder))

    def finalize(self) -> None:
        self._pool.close()

    def _accept(self, request: Any, who: wire.Identity, responder: Responder) -> None:
        prompt = self._read(request)
        in_sequence = bool(who.correlation_id)
        # One-shot callers have no order: each gets a queue of its own.
        key = (type(who.correlation_id), who.correlation_id) if in_sequence else ("request", next(self._numbers))
        answer = partial(self._answer, prompt, responder, in_sequence)
        self._pool.put(key, partial(guarded, responder, answer))

    def _read(self, request: Any) -> Prompt:
        """Errors become part of the value: they have to wait for their turn in the sequence too."""
        options = Options()
        try:
            if self._pool.count >= self._settings.max_queue:
                raise Overloaded(f"{self._pool.count} prompts wait for the tokenizer (max_queue); try again later")
            options = read_options(request)
            if wire.has_input(request, "image"):
                raise Unsupported("this model takes no images", param="image")
            return Prompt(self._bounded(request, "text_input"), self._bounded(request, "messages"), options)
        except MbltError as error:
            return Prompt(None, None, options, error)

    def _bounded(self, request: Any, name: str) -> bytes | None:
        value = wire.bytes_input(request, name)
        limit = self._settings.max_prompt_bytes
        if value is not None and len(value) > limit:
            raise InvalidRequest(f"{name} has {len(value)} bytes, max_prompt_bytes is {limit}", param=name)
        return value

    def _answer(self, prompt: Prompt, responder: Responder, in_sequence: bool) -> None:
        try:
            ids, echo = self._encoded(prompt)
            options = prompt.options
        except MbltError as error:
            if not in_sequence:
                raise
            ids, echo = [], ""
            options = msgspec.structs.replace(prompt.options, error=error.info(responder.request_id))
        tensors = [
            wire.ids_tensor("input_ids", ids),
            wire.text_tensor("prompt_text", echo),
            wire.bytes_tensor(PACKED, pack(options)),
        ]
        responder.send(tensors, final=True)

    def _encoded(self, prompt: Prompt) -> tuple[list[int], str]:
        """Token ids, and the text that leads the answer ("" for none).

        vllm_backend's rule: without streaming the text comes back unless excluded; a rendered chat only on request.
        """
        if prompt.refusal is not None:
            raise prompt.refusal
        if prompt.messages is None and prompt.text is None:
            raise InvalidRequest("send text_input or messages", param="text_input")
        if prompt.messages is not None and prompt.text:
            raise InvalidRequest("send either text_input or messages, not both", param="text_input")
        echoes = prompt.options.echoes(by_default=prompt.messages is None)
        text, encode = self._text_of(prompt)
        self._limit.check_text(text)
        ids = encode()
        self._limit.check_ids(len(ids))
        if not ids:
            raise InvalidRequest("text_input is empty", param="text_input")
        return ids, text if echoes else ""

    def _text_of(self, prompt: Prompt) -> tuple[str, Callable[[], list[int]]]:
        if prompt.messages is None:
            text = wire.decoded(prompt.text or b"", "text_input")
            return text, partial(self._tokenizer.encode, text)
        # An empty text_input beside messages is none: clients made for vllm_backend cannot leave it out.
        rendered = self._template.render(parse_messages(wire.decoded(prompt.messages, "messages")))
        return rendered.text, partial(rendered.encode, self._tokenizer)
