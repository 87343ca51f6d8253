"""One request inside the engine: the frozen request beside everything that changes while it is answered.

A turn has no prefill or decode phase: `computed` tokens catch up with `known` tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triton_mblt.core.request import GenerateRequest
from triton_mblt.engine.outputs import OutputBuffer
from triton_mblt.engine.prompt_scores import PromptScores
from triton_mblt.engine.sampler import RowSampler
from triton_mblt.engine.slots import Slot
from triton_mblt.text.output_text import TextAssembler


class StopIds(NamedTuple):
    """Token ids that end the answer: `eos` by the model's definition (empty under ignore_eos), `asked` by
    stop_token_ids."""

    eos: frozenset[int]
    asked: frozenset[int]


class Turn:
    """Mutable state of one request. Written by the engine only; `slot` and `computed` by scheduler and engine
    commit."""

    __slots__ = (
        "arrival", "buffer", "computed", "known", "limit", "prompt_length", "request", "sampler", "scores", "slot",
        "stop_ids", "text", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        arrival: int,
        capacity: int,
        sampler: RowSampler,
        text: TextAssembler,
        buffer: OutputBuffer,
        stop_ids: StopIds,
    ) -> None:
        prompt = request.prompt_ids()
        self.request = request
        self.arrival = arrival
        self.prompt_length = len(prompt)
        # The last sampled token needs no KV, so one more token than the cache holds may be known.
        left = capacity + 1 - len(prompt)
        wanted = request.sampling.max_tokens
        self.limit = left if wanted is None else min(wanted, left)
        self.tokens: npt.NDArray[np.int32] = np.empty(len(prompt) + self.limit, dtype=np.int32)
        self.tokens[: len(prompt)] = prompt
        self.known = len(prompt)
        self.computed = 0
        self.slot: Slot | None = None
        self.sampler = sampler
        self.text = text
        self.buffer = buffer
        self.stop_ids = stop_ids
        wanted_scores = request.sampling.prompt_logprobs
        self.scores = None if wanted_scores is None else PromptScores(wanted_scores, len(prompt))

    @property
    def handle(self) -> int:
        return self.request.handle

    @property
    def pending(self) -> int:
        """Tokens that are known but whose KV is not computed; 1 for a turn that decodes."""
        return self.known - self.computed

    @property
    def generated(self) -> int:
        return self.known - self.prompt_length

    @property
    def order(self) -> tuple[int, int]:
        """Admission order: lower `priority` first (vLLM's rule), then first come first served."""
        return self.request.sampling.priority, self.arrival

    def append(self, token: int) -> None:
        """A sampled token becomes known."""
        self.tokens[self.known] = token
        self.known += 1
        self.sampler.accept(token)
