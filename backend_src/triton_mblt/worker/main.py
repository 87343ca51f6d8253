"""The NPU worker: one process that loads one model and runs one engine, fed and drained through one socket.

`python -m triton_mblt.worker.main --fd N --parent PID ...`, started by worker/process.py only. Threads: the main thread
runs the engine; a reader moves messages into the inbox and ends the process at EOF, whatever the engine does; a writer
encodes and sends while the next device call runs. Exit codes: 0 drained, load refused, or the stub is gone; 1 a bug or
fault that the log explains.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import pkgutil
import queue
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Protocol

import msgspec

from triton_mblt.core.errors import ConfigError, ErrorInfo, MbltError, Overloaded
from triton_mblt.core.events import Output
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.request import GenerateRequest
from triton_mblt.core.settings import Settings
from triton_mblt.worker import os_setup
from triton_mblt.worker.protocol import (
    Abort,
    Channel,
    Drain,
    LoadFailed,
    Ready,
    Start,
    StatsReply,
    StatsRequest,
    StepOutputs,
    Submit,
    Taken,
    ToStub,
    ToWorker,
    worker_end,
)

_FLUSH_LIMIT_S = 5.0
_log = logging.getLogger("triton_mblt.worker")


class EngineApi(Protocol):
    """What the worker needs of an engine (engine/engine.py). Single-threaded; `step` makes at most one device call."""

    info: ModelInfo

    def submit(self, request: GenerateRequest) -> None: ...
    def abort(self, handle: int, reason: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self, hand_over: Callable[[list[Any]], None]) -> None: ...
    def render(self, said: list[Any]) -> list[Output]: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class _Mailbox:
    """The threads around the engine: `inbox` is filled by the reader, `post` hands messages to the writer."""

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self.inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[ToStub | Callable[[], ToStub | None] | None] = queue.SimpleQueue()
        self._channel = channel
        self._writer = threading.Thread(target=self._write, name="writer", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def post(self, message: ToStub | Callable[[], ToStub | None]) -> None:
        """Send `message`, or what it makes when called on the writer's thread, in the order of the posts."""
        self._outbox.put(message)

    def flush(self) -> None:
        """Wait until everything posted is sent; nothing can be posted after it."""
        self._outbox.put(None)
        self._writer.join(_FLUSH_LIMIT_S)

    def drain(self, wait: bool) -> list[ToWorker]:
        """All messages that have come; with `wait`, at least one."""
        messages = [self.inbox.get()] if wait else []
        while not self.inbox.empty():  # the only reader, so what is there stays there
            messages.append(self.inbox.get())
        return messages

    def _read(self) -> None:
        code = 1
        try:
            while (message := self._channel.receive()) is not None:
                if isinstance(message, Submit):
                    self.post(Taken(message.request.handle))
                self.inbox.put(message)
            code = 0
        except msgspec.MsgspecError:
            _log.exception("a frame of the stub cannot be read; the worker ends")
        finally:  # EOF: the stub is gone. The engine may be inside a device call, so nobody is asked.
            os._exit(code)

    def _write(self) -> None:
        try:
            while (posted := self._outbox.get()) is not None:
                message = posted() if callable(posted) else posted
                if message is not None:
                    self._channel.send(message)
        except OSError:
            os._exit(0)  # the stub is gone
        except Exception:  # noqa: BLE001 -- a worker that can no longer speak must not look alive
            _log.exception("what the engine said cannot be sent; the worker ends")
            os._exit(1)


class _Host:
    """Runs the engine until it is drained. Lives on the main thread."""

    def __init__(self, engine: EngineApi, mailbox: _Mailbox) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._draining = False

    def run(self) -> None:
        engine, mailbox = self._engine, self._mailbox
        while True:
            busy = engine.has_work()
            if self._draining and not busy:
                return
            for message in mailbox.drain(wait=not busy):
                self._handle(message)
            if engine.has_work():
                engine.step(self._hand_over)

    def _hand_over(self, said: list[Any]) -> None:
        self._mailbox.post(partial(_step_message, self._engine, said))

    def _handle(self, message: ToWorker) -> None:
        if isinstance(message, Submit):
            if self._draining:
                error = Overloaded("the server is stopping").info(message.request.request_id)
                self._mailbox.post(StepOutputs([Output(message.request.handle, "", (), error=error)]))
            else:
                self._engine.submit(message.request)
        elif isinstance(message, Abort):
            self._engine.abort(message.handle, message.reason)
        elif isinstance(message, StatsRequest):
            self._mailbox.post(StatsReply(message.number, self._engine.stats()))
        elif isinstance(message, Drain):
            self._draining = True
        else:
            raise TypeError(f"unexpected message {type(message).__name__}")


def _step_message(engine: EngineApi, said: list[Any]) -> StepOutputs | None:
    """Rendered on the writer's thread, while the next device call runs."""
    outputs = engine.render(said)
    return StepOutputs(outputs) if outputs else None


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="triton_mblt.worker.main", description="NPU worker; started by the LM stub.")
    parser.add_argument("--fd", type=int, required=True, help="this end of the socket pair")
    parser.add_argument("--parent", type=int, required=True, help="process id of the stub")
    parser.add_argument("--index", type=int, default=0, help="number of this worker, for its name")
    parser.add_argument("--engine", required=True, help="what has load(settings) -> engine: a module, or module:Class")
    arguments = parser.parse_args()
    os_setup.die_with(arguments.parent)
    os_setup.clean_signals()
    os_setup.set_process_name(f"mblt-worker-{arguments.index}")
    os.set_inheritable(arguments.fd, False)  # or a grandchild would keep the stub from seeing our end
    channel = worker_end(socket.socket(fileno=arguments.fd))
    start = channel.receive()
    if not isinstance(start, Start):
        os._exit(0)  # the stub died before its first frame
    _log_to_stderr(arguments.index, start.settings)
    if start.settings.worker_memory_mb is not None:
        os_setup.limit_memory(start.settings.worker_memory_mb)
    mailbox = _Mailbox(channel)
    try:
        code = _serve(start.settings, arguments.engine, mailbox)
    except Exception:  # noqa: BLE001 -- reported in full; the exit code makes the supervisor start a new worker
        _log.exception("the engine failed; the worker ends")
        code = 1
    mailbox.flush()
    logging.shutdown()
    os._exit(code)  # not sys.exit: a native thread that hangs must not keep a finished worker


def _serve(settings: Settings, engine_name: str, mailbox: _Mailbox) -> int:
    """Load, say so, serve until drained. Returns the exit code."""
    try:
        engine = _load(settings, engine_name)
    except MbltError as error:
        _log.error("cannot load %s: %s", settings.model, error)
        mailbox.post(LoadFailed(error.info(), permanent=isinstance(error, ConfigError)))
        return 0
    except Exception as error:  # noqa: BLE001 -- told to the stub and logged in full; never served
        _log.exception("cannot load %s", settings.model)
        message = f"cannot load {settings.model}: {type(error).__name__}: {error}"
        mailbox.post(LoadFailed(ErrorInfo("INTERNAL", message), permanent=False))
        return 1
    gc.collect()
    gc.freeze()  # what the model brought lives as long as the process: later collections need not look at it
    if not os_setup.prefer_this_thread(settings.worker_nice, settings.worker_realtime):
        _log.info("no permission for worker_nice or worker_realtime: the engine shares the cores evenly")
    mailbox.post(Ready(os.getpid(), engine.info))
    _Host(engine, mailbox).run()
    engine.close()
    return 0


def _load(settings: Settings, engine_name: str) -> EngineApi:
    factory = pkgutil.resolve_name(engine_name)
    engine: EngineApi = factory.load(settings)
    return engine


def _log_to_stderr(index: int, settings: Settings) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format=f"[mblt worker {index}] %(levelname)s %(name)s: %(message)s",
    )


if __name__ == "__main__":
    main()
