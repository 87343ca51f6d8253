"""Stop strings over a stream of text pieces: what may be sent, what must wait, and which string ended the text.

Owns the matching rule. A match counts where it *ends*: the first character at which any stop string is complete ends
the text, and of several that end there the longest wins. The result does not depend on how the text is cut into
pieces. One automaton step per character, so the whole is linear; only a real partial match is held back. Does not
know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from triton_mblt.core.errors import InvalidRequest


class StopStrings:
    """Stop strings of a request, compiled to an Aho-Corasick automaton; frozen, may be shared by many checkers.

    Node 0 is the start. Per node: goto, the node of its longest proper suffix, its depth in characters (what must be
    held back there), and the longest stop string that ends there ("" for none).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequest("stop has an empty string", param="stop")
        self.goto: list[dict[str, int]] = [{}]
        self.suffix = [0]
        self.depth = [0]
        self.ends = [""]
        for stop in stops:
            self._insert(stop)
        self._link()
        self.first = frozenset(self.goto[0])

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self.goto[node]:
                self.goto[node][char] = len(self.goto)
                self.goto.append({})
                self.suffix.append(0)
                self.depth.append(self.depth[node] + 1)
                self.ends.append("")
            node = self.goto[node][char]
        self.ends[node] = stop

    def _link(self) -> None:
        """Breadth first, so that a node's suffix node is complete before the node asks it."""
        order = [0]
        for node in order:
            for char, child in self.goto[node].items():
                order.append(child)
                if node:
                    self.suffix[child] = self.step(self.suffix[node], char)
                if not self.ends[child]:
                    self.ends[child] = self.ends[self.suffix[child]]

    def step(self, node: int, char: str) -> int:
        while node and char not in self.goto[node]:
            node = self.suffix[node]
        return self.goto[node].get(char, 0)


class StopChecker:
    """One per request. After a hit nothing more may be fed."""

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._node = 0
        self._held = ""

    def feed(self, text: str, *, check: bool = True) -> tuple[str, str | None]:
        """(text that may be sent now, the stop string that ended the text or None).

        check=False (vLLM's min_tokens rule): a match that ends inside this text does not count; one that only begins
        in it does.
        """
        stops = self._stops
        node = self._node
        if node == 0 and stops.first.isdisjoint(text):
            return text, None
        for place, char in enumerate(text, 1):
            node = stops.step(node, char)
            if check and stops.ends[node]:
                return self._cut(text[:place], stops.ends[node]), stops.ends[node]
        while node and not stops.goto[node]:  # a complete but uncounted match: only what may still grow is held
            node = stops.suffix[node]
        self._node = node
        whole = self._held + text
        sure = len(whole) - stops.depth[node]
        self._held = whole[sure:]
        return whole[:sure], None

    def flush(self) -> str:
        """The held text, when the generation ended without a hit."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _cut(self, text: str, stop: str) -> str:
        whole = self._held + text
        self._held = ""
        return whole if self._include else whole[: len(whole) - len(stop)]
