"""One turn of a Triton sequence as an iterator of text. Owns that turn's stream; knows no conversation, no terminal.

Each turn has a gRPC stream of its own, so an error or a lost connection ends this turn only.
"""

from __future__ import annotations

import json
import queue
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from triton_errors import ServerError, error_of

OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


@dataclass(frozen=True)
class Chunk:
    """One response and its own token counts (0 when absent). `finish_reason` is "" until the last one."""

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    final: bool


@dataclass(frozen=True)
class TurnRequest:
    """What is sent: the full conversation, how to sample, and the turn's place in its sequence."""

    messages: Sequence[Mapping[str, str]]
    sampling: Mapping[str, Any]
    sequence_id: str
    start: bool
    end: bool
    lease_s: int = 0
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    abort_token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def inputs(self) -> list[grpcclient.InferInput]:
        """The request's tensors, all of shape [1]."""
        values: dict[str, str | bool] = {
            "messages": json.dumps(list(self.messages), ensure_ascii=False),
            "sampling_parameters": json.dumps(dict(self.sampling)),
            "stream": True,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        }
        return [tensor(name, value) for name, value in values.items()]

    def parameters(self) -> dict[str, str | int]:
        """The request's parameters: what an abort must show, and how long the server may wait for a sign of life."""
        lease: dict[str, str | int] = {"lease_s": self.lease_s} if self.lease_s else {}
        return {"abort_token": self.abort_token, **lease}


def tensor(name: str, value: str | bool) -> grpcclient.InferInput:
    """A BYTES or BOOL input of shape [1]. Lone surrogates of a broken terminal become "?"."""
    if isinstance(value, bool):
        made, data = grpcclient.InferInput(name, [1], "BOOL"), np.array([value])
    else:
        made = grpcclient.InferInput(name, [1], "BYTES")
        data = np.array([value.encode("utf-8", "replace")], dtype=np.object_)
    made.set_data_from_numpy(data)
    return made


class Turn:
    """Sends a request when made and yields its chunks. After the final chunk or an error the stream is closed.

    Iteration raises ServerError. After an interrupt (Ctrl-C) it may go on: responses wait in a queue.
    """

    def __init__(self, client: grpcclient.InferenceServerClient, model: str, request: TurnRequest) -> None:
        self.request = request
        self._client = client
        self._responses: queue.SimpleQueue[Chunk | ServerError] = queue.SimpleQueue()
        self._open = True
        client.start_stream(self._receive)
        try:
            self._send(model)
        except InferenceServerException as error:
            client.stop_stream(cancel_requests=True)  # waits for the stream's own, better reason, which is then first
            self._responses.put(error_of(error))

    def __iter__(self) -> Turn:
        return self

    def __next__(self) -> Chunk:
        chunk = self.wait()
        if chunk is None:
            raise StopIteration
        return chunk

    def wait(self, limit_s: float | None = None) -> Chunk | None:
        """The next chunk, or None after the end. Errors: ServerError of the request; queue.Empty after the limit."""
        if not self._open:
            return None
        got = self._responses.get(timeout=limit_s)
        if isinstance(got, ServerError):
            self.close()
            raise got
        if got.final:
            self.close()
        return got

    def close(self) -> None:
        """Leave the stream. Idempotent. An ensemble does not tell the LM that nobody listens: abort first."""
        if self._open:
            self._open = False
            self._client.stop_stream(cancel_requests=True)

    def _send(self, model: str) -> None:
        self._client.async_stream_infer(
            model,
            self.request.inputs(),
            outputs=[grpcclient.InferRequestedOutput(name) for name in OUTPUTS],
            request_id=self.request.request_id,
            sequence_id=self.request.sequence_id,
            sequence_start=self.request.start,
            sequence_end=self.request.end,
            enable_empty_final_response=True,
            parameters=self.request.parameters(),
        )

    def _receive(self, result: grpcclient.InferResult | None, error: InferenceServerException | None) -> None:
        self._responses.put(error_of(error) if error is not None else chunk_of(result))


def chunk_of(result: grpcclient.InferResult) -> Chunk:
    """The chunk that a response carries."""
    final = result.get_response().parameters["triton_final_response"].bool_param
    text = result.as_numpy("text_output")
    reason = result.as_numpy("finish_reason")
    return Chunk(
        text=_text(text),
        finish_reason=_text(reason).replace("None", ""),
        input_tokens=_count(result.as_numpy("num_input_tokens")),
        output_tokens=_count(result.as_numpy("num_output_tokens")),
        final=final,
    )


def _text(values: npt.NDArray[Any] | None) -> str:
    return "" if values is None or not values.size else values.reshape(-1)[0].decode("utf-8", "replace")


def _count(values: npt.NDArray[Any] | None) -> int:
    return 0 if values is None or not values.size else int(values.reshape(-1)[0])
