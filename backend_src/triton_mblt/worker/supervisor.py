"""Keeps the NPU workers alive: starts, watches and restarts them, and tells one listener what they say.

Owns each worker's process and state, written by its keeper thread only. Each keeper starts its worker, reads it to the
end, and waits before the next start. Does not know which requests are open: the listener does.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from triton_mblt.core.errors import ConfigError, ErrorInfo, ModelUnavailable, WorkerRestarting
from triton_mblt.core.events import Output
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.settings import Settings
from triton_mblt.worker.process import WorkerProcess
from triton_mblt.worker.protocol import (
    Abort,
    Drain,
    LoadFailed,
    Ready,
    StatsReply,
    StatsRequest,
    StepOutputs,
    Submit,
    Taken,
)

State = Literal["starting", "ready", "dead", "failed", "closed"]
Order = Submit | Abort | StatsRequest | Drain
Log = Callable[[str, str], None]  # level (debug, info, warning, error), text

# A killed process can be collected this soon after its socket closed; only the exit code in a message hangs on it.
_EXIT_CODE_WAIT_S = 0.1


class Loss(msgspec.Struct, frozen=True):
    """A worker is gone. `error` is for the requests that it had or that wait for it; `cause` is set when it never
    became ready and says why; `permanent` means that it is not started again."""

    error: ErrorInfo
    cause: ErrorInfo | None = None
    permanent: bool = False


class Listener(Protocol):
    """Called on the keeper thread of worker `index`, in order: ready, then said and stats, then lost; and again."""

    def worker_ready(self, index: int, info: ModelInfo) -> None: ...
    def worker_took(self, handle: int) -> None: ...
    def worker_said(self, outputs: list[Output]) -> None: ...
    def worker_stats(self, index: int, number: int, stats: dict[str, Any]) -> None: ...
    def worker_lost(self, index: int, loss: Loss) -> None: ...


class Keeper:
    """One worker's place: its thread, the current process, and what is known of it."""

    def __init__(self, index: int, settings: Settings, engine: str, listener: Listener, log: Log) -> None:
        self._index = index
        self._settings = settings
        self._engine = engine
        self._listener = listener
        self._log = log
        self._closing = threading.Event()
        self._spawning = threading.Lock()  # a close() must not miss a process that is just being started
        self._process: WorkerProcess | None = None
        self._outgoing: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._keep, name=f"mblt-keeper-{index}", daemon=True)
        self.state: State = "starting"
        self.starts = 0
        self.last_error = ""

    def start(self) -> None:
        self._thread.start()

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def send(self, message: Order) -> None:
        """Never blocks. What is sent to a worker that is not ready, or is dying, is dropped: its loss is told."""
        self._outgoing.put(message)

    def close(self, limit_s: float) -> None:
        """Drain the worker, or kill it when it has not ended in `limit_s`. Returns when it is gone. Idempotent."""
        with self._spawning:
            self._closing.set()
            process = self._process
        if process is not None:
            if self.state == "ready":
                self.send(Drain())
                self._thread.join(limit_s)
            process.kill()
        if self._thread.ident is not None:
            self._thread.join()

    def _keep(self) -> None:
        fruitless = 0
        while not self._closing.is_set():
            try:
                loss, fruitful = self._one_life()
            except Exception as error:  # noqa: BLE001 -- a dead keeper would leave its requests without an end
                self._log("error", f"supervising worker {self._index} failed:\n{traceback.format_exc()}")
                loss, fruitful = Loss(WorkerRestarting(f"the NPU worker was lost: {error}").info()), False
            self.last_error = loss.error.message
            self.state = "failed" if loss.permanent else "dead"
            if not self._closing.is_set():
                self._log("error" if loss.permanent else "warning", f"worker {self._index}: {loss.error.message}")
            self._listener.worker_lost(self._index, loss)
            self._end_process()
            if loss.permanent:
                return
            fruitless = 0 if fruitful else fruitless + 1
            self._closing.wait(restart_delay_s(self._settings, fruitless))
        self.state = "closed"

    def _one_life(self) -> tuple[Loss, bool]:
        """Start a worker and read it until it ends. Returns how it was lost and whether it was of use before."""
        try:
            process = self._spawn()
        except ConfigError as error:
            return _load_loss(error.info(), permanent=True), False
        except OSError as error:
            return _load_loss(ErrorInfo("INTERNAL", f"cannot start a process: {error}"), permanent=False), False
        if process is None:
            return Loss(WorkerRestarting("the server is stopping").info()), False
        first = process.receive(self._settings.worker_start_limit_s)
        if isinstance(first, LoadFailed):
            return _load_loss(first.error, first.permanent), False
        if not isinstance(first, Ready):
            code = process.wait(_EXIT_CODE_WAIT_S)
            how = f"it did not finish in {self._settings.worker_start_limit_s:g} s" if code is None else _how(code)
            return _load_loss(ErrorInfo("INTERNAL", how), permanent=False), False
        self.state = "ready"
        self._log("info", f"worker {self._index} (pid {process.pid}) serves {first.model.name}")
        outgoing = self._outgoing
        threading.Thread(target=_send_all, args=(process, outgoing), name="mblt-sender", daemon=True).start()
        try:
            self._listener.worker_ready(self._index, first.model)
            fruitful = self._relay(process)
        finally:
            outgoing.put(None)
        code = process.wait(_EXIT_CODE_WAIT_S)
        how = "stopped answering" if code is None else _how(code)
        text = f"the NPU worker {how} while this request was open; it is started again, try later"
        return Loss(WorkerRestarting(text).info()), fruitful

    def _spawn(self) -> WorkerProcess | None:
        with self._spawning:
            if self._closing.is_set():
                return None
            self.state = "starting"
            self.starts += 1
            self._outgoing = queue.SimpleQueue()
            self._process = WorkerProcess.start(self._settings, self._index, self._engine)
            return self._process

    def _relay(self, process: WorkerProcess) -> bool:
        """Hand over what the worker says until its end. Returns whether it was of use: it answered or stood by long."""
        fruitful, began = False, time.monotonic()
        while (message := process.receive()) is not None:
            if isinstance(message, StepOutputs):
                fruitful = True
                self._listener.worker_said(message.outputs)
            elif isinstance(message, Taken):
                self._listener.worker_took(message.handle)
            elif isinstance(message, StatsReply):
                self._listener.worker_stats(self._index, message.number, message.stats)
            else:
                raise TypeError(f"unexpected message {type(message).__name__}")
        return fruitful or time.monotonic() - began > self._settings.worker_backoff_max_s

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.reap()


class Supervisor:
    """N keepers under one roof."""

    def __init__(self, settings: Settings, engine: str, count: int, listener: Listener, log: Log) -> None:
        self.keepers = [Keeper(index, settings, engine, listener, log) for index in range(count)]

    def start(self) -> None:
        for keeper in self.keepers:
            keeper.start()

    def close(self, limit_s: float) -> None:
        """End all workers, at the same time; kill those that have not ended in `limit_s`. Returns when none is left."""
        closers = [threading.Thread(target=keeper.close, args=(limit_s,)) for keeper in self.keepers]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


def _send_all(process: WorkerProcess, outgoing: queue.SimpleQueue[Order | None]) -> None:
    """A sender per worker life: no caller ever waits for a worker that does not read."""
    with contextlib.suppress(OSError):  # it is gone; its keeper sees that too
        while (message := outgoing.get()) is not None:
            process.send(message)


def _load_loss(cause: ErrorInfo, permanent: bool) -> Loss:
    if permanent:
        error = ModelUnavailable(f"the model cannot be loaded: {cause.message}", param=cause.param).info()
    else:
        error = WorkerRestarting(f"the NPU worker could not load the model: {cause.message}; it tries again").info()
    return Loss(error, cause, permanent)


def restart_delay_s(settings: Settings, fruitless: int) -> float:
    """No wait after a useful life or one useless one; then `worker_backoff_s`, doubled up to `worker_backoff_max_s`."""
    if fruitless <= 1:
        return 0.0
    return min(settings.worker_backoff_max_s, settings.worker_backoff_s * 2.0 ** min(fruitless - 2, 32))


def _how(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
