"""Incremental text of one generation: ids in, new text out, never half a character.

Owns the bytes that are not yet a character (at most three). The joined pieces equal the one-shot decode of all ids,
also for bytes that are no UTF-8. One exception, in SentencePiece vocabularies only: there the one-shot decode turns a
whole run of byte tokens into U+FFFD when any part of it is invalid, and characters before that part have already been
sent.

tokenizers' own DecodeStream is not used: it waits for ever behind one invalid byte. Does not know stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from triton_mblt.text.tokenizer import TextTokenizer

_REPLACEMENT = "\ufffd"
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One per request."""

    def __init__(
        self, tokenizer: TextTokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        """`prompt_ids` give the border: the text begins as decode(prompt + output) goes on behind decode(prompt)."""
        self._token_bytes = tokenizer.token_bytes
        self._skip: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = _Utf8Decoder("replace")
        tail = self._tail(prompt_ids)
        self._utf8.decode(_unfinished(tail))
        # The prompt ends inside a character: when the output does not complete it, its U+FFFD is prompt text.
        self._drop_first = _REPLACEMENT if self._utf8.getstate()[0] else ""
        if tokenizer.token_bytes.strip_left and not tail:
            self._drop_first = " "

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete, "" for none. Ids without a text count as nothing."""
        data = b"".join([self._token_bytes(id_) for id_ in ids if id_ not in self._skip])
        return self._own(self._utf8.decode(data))

    def finish(self) -> str:
        """The rest, once, when the generation is over: U+FFFD for an unfinished character."""
        return self._own(self._utf8.decode(b"", True))

    def _own(self, text: str) -> str:
        if text and self._drop_first:
            text, self._drop_first = text.removeprefix(self._drop_first), ""
        return text

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The last bytes of the prompt: three at least, unless it has fewer."""
        tail = b""
        for id_ in reversed(prompt_ids):
            if len(tail) >= 3:
                break
            if id_ not in self._skip:
                tail = self._token_bytes(id_) + tail
        return tail


def _unfinished(tail: bytes) -> bytes:
    """From the last lead byte on, if that is one of the last three bytes: a character has at most four."""
    for size in range(1, min(3, len(tail)) + 1):
        if tail[-size] >= 0xC0:
            return tail[-size:]
    return b""
