"""Penalties of one request, kept as a sparse table of the words that it has seen.

Repetition counts prompt and answer, presence and frequency the answer only. A step costs as much as there are different
words in the table, never the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from triton_mblt.core.sampling_params import SamplingParams


class Penalties:
    """The words seen and how often the answer holds each (0 for words of the prompt alone)."""

    __slots__ = ("_counts", "_frequency", "_ids", "_place", "_presence", "_repetition", "_used")

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int] | npt.NDArray[np.int32], vocab_size: int
    ) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        counted = prompt_ids if params.repetition_penalty != 1.0 else ()
        seen = np.unique(np.asarray(counted, dtype=np.int64))
        # Placeholders of images may lie above the vocabulary.
        seen = seen[(seen >= 0) & (seen < vocab_size)]
        self._used = seen.size
        self._ids = np.zeros(max(2 * seen.size, 64), np.int64)
        self._ids[: seen.size] = seen
        self._counts = np.zeros(self._ids.size, np.float32)
        self._place = {token: place for place, token in enumerate(seen.tolist())}

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0

    @property
    def idle(self) -> bool:
        """True while no word has been seen, so `apply` would change nothing."""
        return self._used == 0

    def accept(self, token: int) -> None:
        """The answer got `token`."""
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._used
            if place == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._used += 1
        self._counts[place] += 1.0

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Change `logits` [V] in place."""
        ids, counts = self._ids[: self._used], self._counts[: self._used]
        values = logits[ids]
        if self._repetition != 1.0:
            values = np.where(values > 0.0, values / self._repetition, values * self._repetition)
        if self._frequency != 0.0:
            values -= self._frequency * counts
        if self._presence != 0.0:
            values -= self._presence * (counts > 0.0)
        logits[ids] = values
