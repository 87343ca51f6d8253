"""A conversation kept as one Triton sequence. Owns its messages, its sequence id and whether the server knows it.

Every turn sends the full conversation, so a lost sequence costs only time: the next turn starts a new one.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import tritonclient.grpc as grpcclient

from triton_control import Control
from triton_errors import ServerError
from triton_stream import Chunk, Turn, TurnRequest

_LOST_SEQUENCE = "must specify the START flag"
_ABORT_TRIES = 25
_ABORT_PAUSE_S = 0.2
_END_LIMIT_S = 2.0


class Conversation:
    """Messages and the sequence that carries them. Not thread-safe."""

    def __init__(
        self,
        client: grpcclient.InferenceServerClient,
        model: str,
        sampling: Mapping[str, Any],
        *,
        system: str = "",
        lease_s: int = 0,
    ) -> None:
        self._client = client
        self._model = model
        self._sampling = dict(sampling)
        self._lease_s = lease_s
        self._sequence = ""
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str, *, last: bool = False) -> Turn:
        """Send `text` as the user's next message. `last` ends the sequence with this answer."""
        self.messages.append({"role": "user", "content": text})
        return self._send(self._sampling, last)

    def again(self, error: ServerError, turn: Turn) -> Turn | None:
        """The same turn on a new sequence when the server had forgotten the old one (idle for too long), else None."""
        if _LOST_SEQUENCE not in error.message or turn.request.start:
            return None
        self._sequence = ""
        return self._send(self._sampling, turn.request.end)

    def answered(self, turn: Turn, text: str) -> None:
        """Keep the answer, whole or cut short by its reader; without any text the question goes as well."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()
        if turn.request.end:
            self._sequence = ""

    def failed(self) -> None:
        """Drop the question that failed. Its sequence may be lost as well, so the next turn starts a new one."""
        self.messages.pop()
        self._sequence = ""

    def end(self) -> None:
        """Tell the server that the sequence is over, with a last turn of one token."""
        if not self._sequence:
            return
        turn = self._send({**self._sampling, "max_tokens": 1}, True)
        self._sequence = ""
        deadline = time.monotonic() + _END_LIMIT_S
        try:
            while turn.wait(max(deadline - time.monotonic(), 0.0)) is not None:
                pass
        except (ServerError, queue.Empty):
            pass  # the server's own idle limit ends what this could not
        finally:
            turn.close()

    def _send(self, sampling: Mapping[str, Any], end: bool) -> Turn:
        start = not self._sequence
        if start:
            self._sequence = f"chat-{uuid.uuid4().hex}"
        request = TurnRequest(self.messages, sampling, self._sequence, start, end, self._lease_s)
        return Turn(self._client, self._model, request)


def abort(control: Control, turn: Turn) -> Chunk:
    """Cancel an answer and wait for its end; returns the text that was under way, as one chunk.

    The abort may come before the request reached the LM, so it is repeated until the turn ends.
    Errors: ServerError when the abort is refused or the turn does not end.
    """
    chunks: list[Chunk] = []
    for _ in range(_ABORT_TRIES):
        control.abort(turn.request)
        try:
            while (chunk := turn.wait(_ABORT_PAUSE_S)) is not None:
                chunks.append(chunk)
        except queue.Empty:
            continue
        except ServerError as error:
            if error.code != "CANCELLED":
                raise
        return joined(chunks)
    turn.close()
    raise ServerError("the server did not end the cancelled answer", code="UNAVAILABLE")


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """One final chunk of all of them."""
    return Chunk(
        text="".join(chunk.text for chunk in chunks),
        finish_reason=next((chunk.finish_reason for chunk in reversed(chunks) if chunk.finish_reason), "cancelled"),
        input_tokens=max((chunk.input_tokens for chunk in chunks), default=0),
        output_tokens=sum(chunk.output_tokens for chunk in chunks),
        final=True,
    )
