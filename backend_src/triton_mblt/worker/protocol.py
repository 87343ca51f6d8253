"""Messages between the LM stub and an NPU worker: typed, msgpack, length-prefixed frames on one socket pair.

Stub to worker: Start (the first frame), then Submit, Abort, StatsRequest, Drain. Worker to stub: Ready or LoadFailed,
then Taken (one per Submit), StepOutputs (one per engine step) and StatsReply. The worker ends when its end of the
socket reads EOF.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

from triton_mblt.core.errors import ErrorInfo
from triton_mblt.core.events import Output
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.request import GenerateRequest
from triton_mblt.core.settings import Settings


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first frame: the deployment to load. Through the socket, because a command line is readable by everyone."""

    settings: Settings


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A request that passed the door."""

    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request at the next step; idempotent, unknown handles are ignored. `reason` is the CANCELLED message."""

    handle: int
    reason: str


class StatsRequest(msgspec.Struct, frozen=True, tag=True):
    """Ask for one StatsReply with the same number."""

    number: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs, refuse what comes; the worker ends when it is empty."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker has loaded its model and serves."""

    pid: int
    model: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot load its model; it exits after this. `permanent` says that a retry would fail alike."""

    error: ErrorInfo
    permanent: bool


class Taken(msgspec.Struct, frozen=True, tag=True):
    """The worker has read this request. One that was never taken was never begun, so another worker may have it."""

    handle: int


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """Everything one engine step has to say."""

    outputs: list[Output]


class StatsReply(msgspec.Struct, frozen=True, tag=True):
    """Answer to StatsRequest; `stats` is the worker's part of `lm_control` stats."""

    number: int
    stats: dict[str, Any]


ToWorker = Start | Submit | Abort | StatsRequest | Drain
ToStub = Ready | LoadFailed | Taken | StepOutputs | StatsReply

MessageT = TypeVar("MessageT")
_HEADER = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()


class Channel(Generic[MessageT]):
    """One end of a stub-worker socket. One reader thread and one writer thread at a time (more have to lock)."""

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self._sock = sock
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(incoming)

    def send(self, message: ToWorker | ToStub) -> None:
        """Write one frame. Raises OSError when the other end is gone."""
        payload = _ENCODER.encode(message)
        self._sock.sendall(_HEADER.pack(len(payload)) + payload)

    def receive(self) -> MessageT | None:
        """The next message, or None at end of file (also in the middle of a frame: the sender died)."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        payload = self._read(_HEADER.unpack(header)[0])
        return None if payload is None else self._decoder.decode(payload)

    def close(self) -> None:
        """Wake a blocked receive on this end with EOF, then close. Idempotent."""
        with contextlib.suppress(OSError):  # the peer is gone already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> bytes | None:
        parts = bytearray(size)
        view, filled = memoryview(parts), 0
        while filled < size:
            try:
                count = self._sock.recv_into(view[filled:])
            except OSError:
                return None
            if count == 0:
                return None
            filled += count
        return bytes(parts)


def stub_end(sock: socket.socket) -> Channel[ToStub]:
    return Channel(sock, ToStub)


def worker_end(sock: socket.socket) -> Channel[ToWorker]:
    return Channel(sock, ToWorker)
