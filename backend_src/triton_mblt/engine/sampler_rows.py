"""What the sampler keeps of one request: its parameters, draws, penalties and masks.

One RowSampler per request, changed only by `accept`. Knows nothing of other rows, so a text cannot depend on them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.engine.bad_words import BadWords
from triton_mblt.engine.penalties import Penalties
from triton_mblt.engine.philox import Draws

Floats = npt.NDArray[np.float32]


class RowSampler:
    """The sampling state of one request. Read-only outside: `params`, `vocab_size`, `want_logprob`, `n_generated`
    and `plain`: the largest logit is always the answer."""

    __slots__ = (
        "_allowed", "_bad_words", "_bias", "_bias_ids", "_draws", "_end_ids", "_penalties", "n_generated", "params",
        "plain", "vocab_size", "want_logprob",
    )  # fmt: skip

    @classmethod
    def create(
        cls,
        params: SamplingParams,
        prompt_ids: Sequence[int] | npt.NDArray[np.int32],
        vocab_size: int,
        eos_ids: Collection[int],
        bad_words_ids: Sequence[Sequence[int]],
        default_seed: int,
        want_logprob: bool = False,
    ) -> RowSampler:
        """State for a request that has generated nothing yet.

        `vocab_size` is the tokenizer's size: words of a wider model head are never sampled. `bad_words_ids` holds every
        spelling in tokens of every bad word. `default_seed` is used when the request gave none. `want_logprob` asks for
        the chosen word's logprob also when `params.logprobs` does not. Token ids in `params` must have passed
        `check_against_vocab`.
        """
        row = cls()
        row.params = params
        row.vocab_size = vocab_size
        row.want_logprob = want_logprob or params.logprobs is not None
        row.n_generated = 0
        row._draws = Draws(default_seed if params.seed is None else params.seed)
        row._allowed = None if params.allowed_token_ids is None else np.array(sorted(set(params.allowed_token_ids)))
        row._bad_words = BadWords(bad_words_ids) if bad_words_ids else None
        ends = sorted({token for token in (*eos_ids, *params.stop_token_ids) if token < vocab_size})
        row._end_ids = np.array(ends, dtype=np.intp)
        row._bias_ids = np.array([token for token, _ in params.logit_bias], dtype=np.intp)
        row._bias = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        row._penalties = Penalties(params, prompt_ids, vocab_size) if Penalties.wanted(params) else None
        edits = (
            row._allowed is not None or row._bad_words is not None or row._penalties is not None or params.logit_bias
        )
        row.plain = params.greedy and not edits and not params.min_tokens and not row.want_logprob
        return row

    params: SamplingParams
    vocab_size: int
    want_logprob: bool
    plain: bool
    n_generated: int
    _draws: Draws
    _allowed: npt.NDArray[np.intp] | None
    _bad_words: BadWords | None
    _end_ids: npt.NDArray[np.intp]
    _bias_ids: npt.NDArray[np.intp]
    _bias: Floats
    _penalties: Penalties | None

    def accept(self, token: int) -> None:
        """The answer got `token`: counts, the tail for bad words and the position move on."""
        self.n_generated += 1
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._bad_words is not None:
            self._bad_words.accept(token)

    def draw(self) -> float:
        """The uniform number of the word to be chosen now, in [0, 1). Asking twice gives the same number."""
        return self._draws.at(self.n_generated)

    def edited(self, logits: Floats) -> Floats:
        """`logits` [V] after masks, bias and penalties: a copy, or `logits` itself when there is nothing to do."""
        banned = self._bad_words.banned() if self._bad_words is not None else []
        mask_ends = self.n_generated < self.params.min_tokens and self._end_ids.size > 0
        penalties = None if self._penalties is None or self._penalties.idle else self._penalties
        if self._allowed is None and not banned and not mask_ends and not self._bias.size and penalties is None:
            return logits
        if self._allowed is None:
            edited = logits.copy()
        else:
            edited = np.full_like(logits, -np.inf)
            edited[self._allowed] = logits[self._allowed]
        if banned:
            edited[banned] = -np.inf
        if mask_ends:
            edited[self._end_ids] = -np.inf
        if self._bias.size:
            edited[self._bias_ids] += self._bias
        if penalties is not None:
            penalties.apply(edited)
        return edited
