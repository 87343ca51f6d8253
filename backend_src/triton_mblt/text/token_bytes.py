"""The bytes that one token stands for, so that a text is the concatenation of its tokens' bytes.

Owns the two ways in which vocabularies write bytes: the byte-level alphabet (every byte has one printable character)
and SentencePiece's (U+2581 is a space, "<0x0A>" is a byte). Does not know prompts or streams.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer

from triton_mblt.core.errors import ConfigError

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


def _byte_of_char() -> dict[str, int]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in shown}
    hidden = (byte for byte in range(256) if chr(byte) not in table)
    table.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return table


BYTE_OF_CHAR = _byte_of_char()


class TokenBytes:
    """table(id) -> bytes, b"" for an id without a text. Filled as ids are asked for.

    byte_level: which of the two ways. strip_left: the decoder drops one space at the very beginning of a text.
    """

    def __init__(self, backend: Tokenizer) -> None:
        """Errors: ConfigError(param="model") for a decoder that is neither of the two."""
        self._backend = backend
        self._known: dict[int, bytes] = {}
        steps = decoder_steps(backend)
        kinds = [step["type"] for step in steps if step["type"] != "Fuse"]
        self.byte_level = kinds == ["ByteLevel"]
        self.strip_left = kinds[-1:] == ["Strip"]
        if not self.byte_level and not _is_space_marked(steps):
            raise ConfigError(f"tokenizer.json: decoder {' + '.join(kinds) or 'null'} is not served", param="model")

    def __call__(self, id_: int) -> bytes:
        known = self._known.get(id_)
        if known is None:
            token = self._backend.id_to_token(id_) if id_ >= 0 else None
            known = self._known[id_] = b"" if token is None else self._to_bytes(token)
        return known

    def _to_bytes(self, token: str) -> bytes:
        if self.byte_level:
            try:
                return bytes([BYTE_OF_CHAR[char] for char in token])
            except KeyError:
                return token.encode("utf-8")  # an added token such as "a b" stands for itself
        byte = _FALLBACK_BYTE.fullmatch(token)
        return token.replace(_SPACE_MARK, " ").encode("utf-8") if byte is None else bytes([int(byte[1], 16)])


def decoder_steps(backend: Tokenizer) -> list[dict[str, Any]]:
    """The decoder as tokenizer.json writes it, flattened."""
    if backend.decoder is None:
        return []
    shape: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = shape["decoders"] if shape["type"] == "Sequence" else [shape]
    return steps


def _is_space_marked(steps: list[dict[str, Any]]) -> bool:
    """Replace of the space mark, ByteFallback, Fuse, and perhaps Strip of one leading space."""
    by_kind = {step["type"]: step for step in steps}
    kinds = [step["type"] for step in steps]
    if kinds not in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return False
    replace = by_kind["Replace"]
    strip = by_kind.get("Strip", {"content": " ", "start": 1, "stop": 0})
    marks = replace["pattern"] == {"String": _SPACE_MARK} and replace["content"] == " "
    return marks and (strip["content"], strip["start"], strip["stop"]) == (" ", 1, 0)
