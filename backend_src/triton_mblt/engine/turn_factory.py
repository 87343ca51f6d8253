"""Builds a Turn from a request: the sampler's row state and the text assembler, with what they need of the model."""

from __future__ import annotations

from triton_mblt.core.request import GenerateRequest
from triton_mblt.engine.outputs import OutputBuffer
from triton_mblt.engine.sampler import RowSampler
from triton_mblt.engine.turn import Turn
from triton_mblt.npu.spec import ModelSpec
from triton_mblt.text.output_text import TextAssembler
from triton_mblt.text.tokenizer import TextTokenizer


class TurnFactory:
    """Owns the arrival counter."""

    def __init__(self, tokenizer: TextTokenizer, spec: ModelSpec) -> None:
        self.tokenizer = tokenizer
        self._spec = spec
        self._arrivals = 0

    def make(self, request: GenerateRequest) -> Turn:
        """Errors: InvalidRequest for sampling fields that do not fit the vocabulary."""
        sampling, prompt = request.sampling, request.prompt_ids()
        row = RowSampler.create(
            sampling,
            prompt,
            self._spec.vocab_size,
            frozenset(self.tokenizer.eos_ids),
            self._bad_words(sampling.bad_words),
            sampling.seed or 0,
        )
        self._arrivals += 1
        text = TextAssembler(self.tokenizer, sampling, prompt.tolist())
        return Turn(request, self._arrivals, self._spec.max_cache, row, text, OutputBuffer(request, len(prompt)))

    def _bad_words(self, words: tuple[str, ...]) -> list[list[int]]:
        """A word may begin a text or follow a space, and those are different tokens (vLLM's rule)."""
        forms = [form for word in words for form in (word.lstrip(), " " + word.lstrip())]
        return [self.tokenizer.encode(form, add_special_tokens=False) for form in forms]
