"""Chooses the next word of every row of a step: one pass over the batch, one path for any number of rows.

Order per row (vLLM's): allowed ids, bad words, min_tokens, bias, penalties, temperature, min_p, top_k, top_p, draw.
Log-probabilities are of the raw row. A row pays for what its request uses and is independent of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triton_mblt.core.errors import InvalidRequest, MbltError, NpuFault
from triton_mblt.engine.logprobs import log_total, score
from triton_mblt.engine.sampler_kernel import choose
from triton_mblt.engine.sampler_rows import RowSampler

__all__ = ["RowSampler", "Sampled", "sample"]

Floats = npt.NDArray[np.float32]


class Sampled(NamedTuple):
    """The chosen token. `logprob` is None unless wanted; `rank` and `top` (id, logprob) unless `logprobs` was asked."""

    token: int
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] | None = None


def sample(logits: Floats, rows: Sequence[RowSampler]) -> list[Sampled | MbltError]:
    """One outcome per row: a Sampled, or the error that ends that row's request alone.

    `logits` [n, V] float32 is read, never written; row i belongs to `rows[i]`. All rows have the same `vocab_size`; V
    may be larger (a head wider than the tokenizer), not smaller (ValueError). Nothing is counted until the caller says
    `accept`. Row errors: NpuFault when the largest logit is not finite (a NaN anywhere in the row counts),
    InvalidRequest when the request's own masks leave no word.
    """
    if not rows:
        return []
    vocab_size = rows[0].vocab_size
    if logits.shape[0] != len(rows) or logits.shape[1] < vocab_size:
        raise ValueError(f"logits {logits.shape} do not fit {len(rows)} rows of {vocab_size} words")
    words = logits[:, :vocab_size]
    best = words.argmax(axis=1)
    # argmax stops at the first NaN, so this also finds a NaN anywhere in the row.
    peaks = words[np.arange(len(rows)), best]
    if all(row.plain for row in rows) and np.isfinite(peaks).all():
        return [Sampled(token) for token in best.tolist()]
    outcomes: list[Sampled | MbltError] = []
    for row, line, top, peak, sound in zip(
        rows, words, best.tolist(), peaks.tolist(), np.isfinite(peaks).tolist(), strict=True
    ):
        if not sound:
            outcomes.append(_fault(peak))
        else:
            outcomes.append(Sampled(top) if row.plain else _sample_row(line, row, top, peak))
    return outcomes


def _sample_row(logits: Floats, row: RowSampler, best: int, peak: float) -> Sampled | MbltError:
    params = row.params
    edited = row.edited(logits)
    token, edited_peak = best, peak
    if edited is not logits:
        token = int(edited.argmax())
        edited_peak = float(edited[token])
        if edited_peak == -np.inf:
            return InvalidRequest(
                "allowed_token_ids, bad_words and min_tokens leave no word to choose", param="allowed_token_ids"
            )
    if not params.greedy:
        token = choose(edited, edited_peak, params.temperature, params.top_k, params.top_p, params.min_p, row.draw())
    if not row.want_logprob:
        return Sampled(token)
    if params.logprobs is None:
        return Sampled(token, float(logits[token]) - log_total(logits, peak))
    return Sampled(token, *score(logits, token, params.logprobs, peak))


def _fault(peak: float) -> NpuFault:
    return NpuFault(f"the NPU returned logits whose largest value is {peak}; nothing was sampled from them")
