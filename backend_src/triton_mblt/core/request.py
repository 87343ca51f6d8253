"""What a caller asks of the LM, once parsed: frozen, validated, and the same for every entry."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from triton_mblt.core.sampling_params import SamplingParams


class SequenceKey(msgspec.Struct, frozen=True, tag=False):
    """Identity of a Triton sequence. Numeric 5 and text "5" are different keys (design 4)."""

    kind: Literal["int", "str"]
    value: str

    @classmethod
    def of(cls, correlation_id: int | str) -> SequenceKey:
        return cls("int" if isinstance(correlation_id, int) else "str", str(correlation_id))

    def __str__(self) -> str:
        return self.value if self.kind == "int" else repr(self.value)


class OutputOptions(msgspec.Struct, frozen=True):
    """Which optional outputs the caller wants, and how text leaves (vllm_backend's input tensors of the same names)."""

    stream: bool = False
    exclude_input: bool = True
    finish_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    token_ids: bool = False
    num_cached_tokens: bool = False


class GenerateRequest(msgspec.Struct, frozen=True):
    """One turn of one sequence.

    `handle` names the request between stub and worker and is unique for the stub's life. `prompt` is the full
    conversation's token ids as little-endian int32 bytes. `seed` inside `sampling` is always set by the door (a random
    one when the caller gave none), so the worker draws no entropy of its own. KV is shared only between requests of
    equal `cache_salt`.
    """

    handle: int
    request_id: str
    key: SequenceKey
    start: bool
    end: bool
    prompt: bytes
    sampling: SamplingParams
    outputs: OutputOptions
    cache_salt: str = ""

    def prompt_ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.prompt, dtype="<i4")
