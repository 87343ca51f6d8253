"""The inputs besides the prompt: vllm_backend's tensors as one value, read by the tokenizer or by the LM itself.

An ensemble's step must take all its inputs from one decoupled model, and a step that leaves an output out loses the
sequence flags of the next step (both measured), so the tokenizer hands everything to the LM as one packed tensor that
is always there. An error of the tokenizer travels the same way: the LM must see every turn of a sequence, also a
refused one, or Triton refuses the turns after it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from triton_mblt.core.errors import ErrorInfo, InvalidRequest
from triton_mblt.core.request import OutputOptions
from triton_mblt.triton_io import wire

PACKED = "request_options"


class Options(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the caller set; None where it left an input out. `error` is the tokenizer's refusal of the prompt."""

    stream: bool = False
    exclude_input_in_output: bool | None = None
    sampling_parameters: str | None = None
    return_finish_reason: bool = False
    return_cumulative_logprob: bool = False
    return_logprobs: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False
    return_token_ids: bool = False
    return_num_cached_tokens: bool = False
    error: ErrorInfo | None = None

    def echoes(self, by_default: bool) -> bool:
        """Whether the prompt's text leads the answer: only when not streaming; `by_default` when the caller is silent.

        Errors: InvalidRequest when it is asked for in a stream.
        """
        if not self.stream:
            return by_default if self.exclude_input_in_output is None else not self.exclude_input_in_output
        if self.exclude_input_in_output is False:
            raise InvalidRequest(
                "exclude_input_in_output must not be false when streaming: a stream has new text only",
                param="exclude_input_in_output",
            )
        return False

    def outputs(self, exclude_input: bool) -> OutputOptions:
        return OutputOptions(
            stream=self.stream,
            exclude_input=exclude_input,
            finish_reason=self.return_finish_reason,
            cumulative_logprob=self.return_cumulative_logprob,
            logprobs=self.return_logprobs,
            num_input_tokens=self.return_num_input_tokens,
            num_output_tokens=self.return_num_output_tokens,
            token_ids=self.return_token_ids,
            num_cached_tokens=self.return_num_cached_tokens,
        )


_DECODER = msgspec.json.Decoder(Options)


def read_options(request: Any) -> Options:
    """From the named tensors of a request. Errors: InvalidRequest naming the tensor."""

    def asked(name: str) -> bool:
        return wire.flag_input(request, name) or False

    return Options(
        stream=asked("stream"),
        exclude_input_in_output=wire.flag_input(request, "exclude_input_in_output"),
        sampling_parameters=wire.text_input(request, "sampling_parameters"),
        return_finish_reason=asked("return_finish_reason"),
        return_cumulative_logprob=asked("return_cumulative_logprob"),
        return_logprobs=asked("return_logprobs"),
        return_num_input_tokens=asked("return_num_input_tokens"),
        return_num_output_tokens=asked("return_num_output_tokens"),
        return_token_ids=asked("return_token_ids"),
        return_num_cached_tokens=asked("return_num_cached_tokens"),
    )


def pack(options: Options) -> bytes:
    """As JSON: the tokenizer's outputs can be read by people, and by the generate endpoint."""
    return msgspec.json.encode(options)


def unpack(packed: bytes) -> Options:
    """Errors: InvalidRequest when `packed` is not what `pack` makes."""
    try:
        return _DECODER.decode(packed)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{PACKED} is not what the tokenizer makes: {error}", param=PACKED) from error
