"""Greedy answers by transformers' own generate(), with how close each choice was, so that a near-tie can be excused.

A difference is excused only at a token where the reference's two best logits are closer than NEAR_TIE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

NEAR_TIE = 1e-4


@dataclass(frozen=True)
class Greedy:
    """`ids` as generated (a final EOS included), `gaps[i]` between the two best logits that gave ids[i]."""

    ids: list[int]
    gaps: list[float]

    def check(self, got: Sequence[int], what: str) -> None:
        """Fail when `got` differs from the reference anywhere but behind a near-tie."""
        if list(got) == self.ids:
            return
        pairs = zip(got, self.ids, strict=False)
        first = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(got), len(self.ids)))
        gap = self.gaps[first] if first < len(self.gaps) else float("inf")
        assert gap < NEAR_TIE, f"{what}: differs at token {first} (gap {gap}): {list(got)} instead of {self.ids}"


@torch.inference_mode()
def greedy_answer(model: Any, prompt: Sequence[int], count: int, *, stop_at_eos: bool = True) -> Greedy:
    """`count` tokens (fewer when the model ends itself) after `prompt`."""
    settings = {} if stop_at_eos else {"eos_token_id": None}
    out = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),  # else padding is guessed from ids
        max_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
    )
    best = [step[0].topk(2).values for step in out.logits]
    return Greedy(out.sequences[0, len(prompt) :].tolist(), [float(top[0] - top[1]) for top in best])
