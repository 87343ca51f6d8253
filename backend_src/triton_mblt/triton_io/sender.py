"""The way back of a request: exactly one final response, whoever sends it, and lanes that spare other threads sending.

A lane is a thread with a queue; all responses of one request go through the same lane, in order. Measured: asking
Triton whether a request was cancelled after its final response has left crashes the whole server, so that question and
the final response exclude each other here.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from triton_mblt.core.errors import ErrorInfo, MbltError
from triton_mblt.triton_io import wire


class Responder:
    """One request's response sender. Thread-safe; whatever comes after the final response is dropped."""

    def __init__(self, request: Any, request_id: str) -> None:
        self.request_id = request_id
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()  # held while the final response leaves and while cancellation is asked for
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, tensors: Sequence[Any], *, final: bool) -> None:
        """One response with these tensors."""
        if final:
            self._close(wire.response(tensors))
        elif not self._closed:
            wire.send(self._sender, wire.response(tensors), final=False)

    def fail(self, info: ErrorInfo) -> None:
        """The final response, an error."""
        self._close(wire.error_response(info))

    def end(self) -> None:
        """The final flag without a response."""
        self._close(None)

    def cancelled(self) -> bool:
        """Whether the client has cancelled or gone; False once the final response has left."""
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())

    def _close(self, answer: Any | None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if answer is None:
                wire.send_end(self._sender)
            else:
                wire.send(self._sender, answer, final=True)


class Endable(Protocol):
    """A request that can be ended with an error: a Responder, or who knows better how its caller takes errors."""

    @property
    def request_id(self) -> str: ...
    def fail(self, info: ErrorInfo) -> None: ...


class Lanes:
    """Sender threads. `put` never blocks; what is put for one key runs in order."""

    def __init__(self, count: int, name: str) -> None:
        self._queues: list[SimpleQueue[tuple[Endable, Callable[[], None]] | None]] = [
            SimpleQueue() for _ in range(count)
        ]
        self._threads = [
            threading.Thread(target=_run_lane, args=(queue,), name=f"{name}-{index}", daemon=True)
            for index, queue in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, key: int, request: Endable, task: Callable[[], None]) -> None:
        """Run `task`, which sends for `request`, on the lane of `key`. What it raises ends the request."""
        self._queues[key % len(self._queues)].put((request, task))

    def close(self) -> None:
        """Send what was put, then end the threads."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()


def _run_lane(queue: SimpleQueue[tuple[Endable, Callable[[], None]] | None]) -> None:
    while (item := queue.get()) is not None:
        guarded(*item)


def guarded(request: Endable, task: Callable[[], None]) -> None:
    """Run `task`. Whatever it raises becomes the request's final response: no request is left without an end."""
    try:
        task()
    except MbltError as error:
        _end_with(request, error.info(request.request_id))
    except Exception:  # noqa: BLE001 -- a bug here must cost this request only, and must be seen in the log
        wire.log("error", f"request {request.request_id!r} failed inside the server:\n{traceback.format_exc()}")
        _end_with(request, ErrorInfo("INTERNAL", "the server failed on this request", "", request.request_id))


def _end_with(request: Endable, info: ErrorInfo) -> None:
    try:
        request.fail(info)
    except Exception:  # noqa: BLE001 -- nothing can be sent any more: only the log is left
        wire.log("error", f"request {request.request_id!r} could not be ended:\n{traceback.format_exc()}")
