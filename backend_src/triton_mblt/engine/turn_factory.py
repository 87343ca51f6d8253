"""Builds a Turn from a request: the sampler's row state and the text assembler, with what they need of the model."""

from __future__ import annotations

import logging

from triton_mblt.core.request import GenerateRequest
from triton_mblt.core.sampling_params import check_against_vocab
from triton_mblt.engine.outputs import OutputBuffer
from triton_mblt.engine.sampler import RowSampler
from triton_mblt.engine.turn import StopIds, Turn
from triton_mblt.npu.spec import ModelSpec
from triton_mblt.text.output_text import TextAssembler
from triton_mblt.text.tokenizer import TextTokenizer

log = logging.getLogger(__name__)


class TurnFactory:
    """Owns the arrival counter, and what never changes per request: stop ids and the samplable vocabulary."""

    def __init__(self, tokenizer: TextTokenizer, spec: ModelSpec) -> None:
        self._tokenizer = tokenizer
        self._capacity = spec.max_cache
        self._arrivals = 0
        self._eos_ids = frozenset(tokenizer.eos_ids)
        self._last_only = spec.logits == "last"
        self._warned = False
        # A head may be wider than the tokenizer; the ids behind it have no text.
        self.vocab_size = min(spec.vocab_size, tokenizer.vocab_size)

    def make(self, request: GenerateRequest) -> Turn:
        """Errors: InvalidRequest for sampling fields that do not fit the vocabulary."""
        sampling, prompt = request.sampling, request.prompt_ids()
        check_against_vocab(sampling, self.vocab_size)
        self._warn_if_slow(sampling.prompt_logprobs)
        eos = frozenset[int]() if sampling.ignore_eos else self._eos_ids
        row = RowSampler.create(
            sampling,
            prompt,
            self.vocab_size,
            self._eos_ids,
            self._bad_words(sampling.bad_words),
            default_seed=0,
            want_logprob=request.outputs.cumulative_logprob,
        )
        text = TextAssembler(
            self._tokenizer,
            prompt.tolist(),
            stop=sampling.stop,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
        )
        self._arrivals += 1
        buffer = OutputBuffer(request, len(prompt))
        stop_ids = StopIds(eos, frozenset(sampling.stop_token_ids))
        return Turn(request, self._arrivals, self._capacity, row, text, buffer, stop_ids)

    def _warn_if_slow(self, prompt_logprobs: int | None) -> None:
        if prompt_logprobs is not None and self._last_only and not self._warned:
            self._warned = True
            log.warning("this artefact gives logits of the last token only: prompt_logprobs takes one call per token")

    def _bad_words(self, words: tuple[str, ...]) -> list[list[int]]:
        """A word may begin a text or follow a space, and those are different tokens (vLLM's rule)."""
        forms = [form for word in words for form in (word.lstrip(), " " + word.lstrip())]
        return [self._tokenizer.encode(form, add_special_tokens=False) for form in forms]
