"""Finds spellings of special tokens in text in one linear pass, and hides them behind marks that templates cannot see
through.

Owns the matching rule (leftmost, then longest, as the tokenizer's own) and the marks of one request (`Shield`). Does
not know ids.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

_MARK_DIGITS = 24
_INDEX_DIGITS = 6
_Trie = dict[str, Any]


class SpecialSpelling:
    """The spellings of a vocabulary's special tokens, compiled once."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = tuple(sorted({spelling for spelling in spellings if spelling}))
        trie: _Trie = {}
        for spelling in self.spellings:
            node = trie
            for char in spelling:
                node = node.setdefault(char, {})
            node[""] = {}
        nothing = r"(?!)"
        self.whole = re.compile(_pattern(trie, at_end=False) if trie else nothing)
        # Also the beginning of a spelling at the very end of a text: a template might write the rest right behind it.
        self.whole_or_begun = re.compile(_pattern(trie, at_end=True) if trie else nothing)


def _pattern(node: _Trie, *, at_end: bool, depth: int = 0) -> str:
    """Longest first: inside a node, going on is tried before ending here."""
    branches = [re.escape(char) + _pattern(node[char], at_end=at_end, depth=depth + 1) for char in sorted(node) if char]
    if at_end and depth and "" not in node:
        branches.append(r"\Z")
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 else "(?:" + "|".join(branches) + ")"
    return joined if "" not in node else f"(?:{joined})?"


class Shield:
    """Marks of one render. `cover` replaces special spellings in text of the caller, `reveal` puts them back.

    A mark is a run of decimal digits with a random head: it passes unchanged through trim, JSON, HTML and case
    filters, and a caller cannot guess it.
    """

    def __init__(self, spelling: SpecialSpelling) -> None:
        self._spelling = spelling
        self._head = "".join(secrets.choice("0123456789") for _ in range(_MARK_DIGITS))
        self._covered: list[str] = []
        self._mark = re.compile(self._head + rf"(\d{{{_INDEX_DIGITS}}})")

    def cover(self, value: Any) -> Any:
        """The same JSON value with every string, also object keys, covered."""
        if isinstance(value, str):
            return self._spelling.whole_or_begun.sub(self._hide, value)
        if isinstance(value, dict):
            return {self.cover(key): self.cover(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.cover(entry) for entry in value]
        return value

    def reveal(self, text: str) -> str:
        return self._mark.sub(lambda found: self._covered[int(found[1])], text) if self._covered else text

    def _hide(self, found: re.Match[str]) -> str:
        self._covered.append(found[0])
        return f"{self._head}{len(self._covered) - 1:0{_INDEX_DIGITS}d}"
