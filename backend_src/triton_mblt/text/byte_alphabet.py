"""The byte-level BPE alphabet: every byte has one printable character, and tokens are written in those characters."""

from __future__ import annotations


def _byte_of_char() -> dict[str, int]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in shown}
    hidden = (byte for byte in range(256) if chr(byte) not in table)
    table.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return table


BYTE_OF_CHAR = _byte_of_char()


def token_to_bytes(token: str) -> bytes:
    """Bytes of a token. One with a character outside the alphabet (an added token such as "a b") stands for itself."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode("utf-8")
