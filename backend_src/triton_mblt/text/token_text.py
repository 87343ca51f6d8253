"""One token as logprobs outputs show it: a string and its real bytes (the OpenAI fields `token` and `bytes`)."""

from __future__ import annotations

import re

import msgspec

from triton_mblt.text.tokenizer import TextTokenizer

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText(msgspec.Struct, frozen=True):
    """text: the token alone, with U+FFFD for bytes that are no whole character; data: its bytes."""

    text: str
    data: bytes


def token_text(tokenizer: TextTokenizer, id_: int) -> TokenText:
    """Special tokens show their spelling. An id without a text gives ("", b"")."""
    data = _token_data(tokenizer, id_)
    return TokenText(data.decode("utf-8", "replace"), data)


def _token_data(tokenizer: TextTokenizer, id_: int) -> bytes:
    if tokenizer.byte_level:
        return tokenizer.token_bytes(id_)
    if id_ in tokenizer.added_text:
        return tokenizer.added_text[id_].encode("utf-8")
    token = tokenizer.backend.id_to_token(id_) if 0 <= id_ < tokenizer.vocab_size else None
    if token is None:
        return b""
    byte = _FALLBACK_BYTE.fullmatch(token)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return token.replace("\u2581", " ").encode("utf-8")
