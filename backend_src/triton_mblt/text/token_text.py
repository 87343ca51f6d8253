"""One token as logprobs outputs show it: a string and its real bytes (the OpenAI fields `token` and `bytes`)."""

from __future__ import annotations

import msgspec

from triton_mblt.text.tokenizer import TextTokenizer


class TokenText(msgspec.Struct, frozen=True):
    """text: the token alone, with U+FFFD for bytes that are no whole character; data: its bytes."""

    text: str
    data: bytes


def token_text(tokenizer: TextTokenizer, id_: int) -> TokenText:
    """Special tokens show their spelling. An id without a text gives ("", b"")."""
    data = tokenizer.token_bytes(id_)
    return TokenText(data.decode("utf-8", "replace"), data)
