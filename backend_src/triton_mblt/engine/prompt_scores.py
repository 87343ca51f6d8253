"""Log-probabilities of a prompt's own tokens (`prompt_logprobs`), collected while the prompt is computed.

The row of logits at position i scores the token at i + 1; the first token has no score.
"""

from __future__ import annotations

from triton_mblt.engine.logprobs import Scored, score
from triton_mblt.npu.device import Floats, Tokens


class PromptScores:
    """One per request that asks. `positions[i]` belongs to prompt token i; the first is None."""

    def __init__(self, n_top: int, prompt_length: int) -> None:
        self._n_top = n_top
        self._prompt_length = prompt_length
        self.positions: list[Scored | None] = [None]

    @property
    def complete(self) -> bool:
        return len(self.positions) == self._prompt_length

    def take(self, logits: Floats, computed: int, tokens: Tokens) -> None:
        """`logits` [m, V] are the rows at positions computed .. computed + m - 1 of `tokens`. Rows that were seen
        before (after a rebuild) or lie behind the prompt are passed over."""
        for row, line in enumerate(logits):
            position = computed + row + 1
            if position == len(self.positions) and position < self._prompt_length:
                self.positions.append(score(line, int(tokens[position]), self._n_top))
