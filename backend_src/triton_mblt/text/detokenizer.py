"""Incremental text of one generation: ids in, new text out, never half a character.

Owns the bytes or ids that are not yet text. The joined pieces equal the one-shot decode of all ids. Does not know
stop strings.

Two kinds. Byte-level vocabularies (all released families) go through Python's incremental UTF-8 decoder: a token is a
byte string, invalid bytes turn into U+FFFD exactly as in the one-shot decode, at most three bytes wait. Other
vocabularies decode a sliding window of ids. tokenizers' own DecodeStream is not used: it waits for ever behind one
invalid byte.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from triton_mblt.text.tokenizer import TextTokenizer

_REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 6
_MAX_HELD_TOKENS = 4
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """push returns the text that the ids complete ("" for none); finish the rest, once, when the generation is over."""

    def push(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


def make_detokenizer(
    tokenizer: TextTokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
) -> Detokenizer:
    """`prompt_ids` give the border: the text begins as decode(prompt + output) goes on behind decode(prompt)."""
    kind = _ByteDetokenizer if tokenizer.byte_level else _WindowDetokenizer
    return kind(tokenizer, prompt_ids, skip_special_tokens)


class _ByteDetokenizer:
    def __init__(self, tokenizer: TextTokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = _utf8_decoder("replace")
        self._utf8.decode(self._unfinished(prompt_ids))
        # The prompt ends inside a character: when the output does not complete it, its U+FFFD is prompt text.
        self._drop_replacement = bool(self._utf8.getstate()[0])

    def push(self, ids: Sequence[int]) -> str:
        data = b"".join([self._token_bytes(id_) for id_ in ids if id_ not in self._skip])
        return self._own(self._utf8.decode(data))

    def finish(self) -> str:
        return self._own(self._utf8.decode(b"", True))

    def _own(self, text: str) -> str:
        if text and self._drop_replacement:
            self._drop_replacement = False
            return text.removeprefix(_REPLACEMENT)
        return text

    def _unfinished(self, prompt_ids: Sequence[int]) -> bytes:
        """The last bytes of the prompt from its last lead byte on (a character has at most four)."""
        tail = b""
        for id_ in reversed(prompt_ids):
            if len(tail) >= 3:
                break
            if id_ not in self._skip:
                tail = self._token_bytes(id_) + tail
        for size in range(1, min(3, len(tail)) + 1):
            if tail[-size] >= 0xC0:
                return tail[-size:]
        return b""


class _WindowDetokenizer:
    """`_window` = context ids, whose text `_known` is out or prompt, then held ids.

    In a byte-fallback vocabulary the one-shot decode turns a whole run of byte tokens into U+FFFD when any part of it
    is invalid; characters of that run that were complete before stay as they were sent.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._window = self._context(prompt_ids)
        self._context_size = len(self._window)
        self._known = self._decode()

    def push(self, ids: Sequence[int]) -> str:
        pieces = []
        for id_ in ids:
            if id_ not in self._skip:
                self._window.append(int(id_))
                pieces.append(self._advance(force=False))
        return "".join(pieces)

    def finish(self) -> str:
        return self._advance(force=True)

    def _advance(self, *, force: bool) -> str:
        held = len(self._window) - self._context_size
        text = self._decode()
        if not force and text.endswith(_REPLACEMENT) and held < _MAX_HELD_TOKENS:
            return ""
        new = _behind(self._known, text)
        self._window = self._context(self._window)
        self._context_size = len(self._window)
        self._known = self._decode()
        return new

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special_tokens)

    def _context(self, ids: Sequence[int]) -> list[int]:
        """The last few ids that have a text."""
        kept: list[int] = []
        for id_ in reversed(ids):
            if len(kept) == _CONTEXT_TOKENS:
                break
            if id_ not in self._skip:
                kept.append(int(id_))
        return kept[::-1]


def _behind(known: str, text: str) -> str:
    if text.startswith(known):
        return text[len(known) :]
    same = next(
        (place for place, (a, b) in enumerate(zip(known, text, strict=False)) if a != b), min(len(known), len(text))
    )
    return text[same:]
