"""Which words may not come next, given the end of the answer, so that no banned run of tokens is completed."""

from __future__ import annotations

from collections.abc import Sequence


class BadWords:
    """Watches one answer. Runs of one token are always banned, longer ones at their last token; empty ones ignored."""

    __slots__ = ("_always", "_by_previous", "_longest", "_tail")

    def __init__(self, runs: Sequence[Sequence[int]]) -> None:
        self._always = sorted({run[0] for run in runs if len(run) == 1})
        # By the token before the last one: a step looks only at runs whose last token may be next.
        self._by_previous: dict[int, list[tuple[list[int], int]]] = {}
        for run in runs:
            if len(run) > 1:
                self._by_previous.setdefault(run[-2], []).append((list(run[:-1]), run[-1]))
        self._longest = max((len(run) - 1 for run in runs if run), default=0)
        self._tail: list[int] = []

    def accept(self, token: int) -> None:
        """The answer got `token`."""
        if self._longest:
            self._tail.append(token)
            del self._tail[: -self._longest]

    def banned(self) -> list[int]:
        """The token ids that would complete a banned run now."""
        if not self._tail:
            return self._always
        runs = self._by_previous.get(self._tail[-1], ())
        found = [last for start, last in runs if self._tail[-len(start) :] == start]
        return self._always + found if found else self._always
