"""What the Triton models of the LM talk to: submit, cancel, abort, renew, stats, drain. Thread-safe; imports no Triton.

Owns the table of open requests and which worker each one is at, under one lock. Every request gets exactly one final
output: from its worker, or from here when it is refused late, cancelled while waiting, lost with its worker, or open at
close.
"""

from __future__ import annotations

import hmac
import itertools
import threading
import time
import traceback
from typing import Any

from triton_mblt.core.errors import (
    Cancelled,
    ConfigError,
    ErrorInfo,
    InvalidRequest,
    MbltError,
    Overloaded,
    WorkerRestarting,
    error_of,
)
from triton_mblt.core.events import Output
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.request import GenerateRequest, SequenceKey
from triton_mblt.core.settings import Settings
from triton_mblt.worker.admission import check_request, check_seconds, request_error
from triton_mblt.worker.leases import LeaseClock
from triton_mblt.worker.open_request import Deliver, OpenRequest
from triton_mblt.worker.parent_watch import ParentWatch
from triton_mblt.worker.process import PRODUCT_ENGINE
from triton_mblt.worker.protocol import Abort, StatsRequest, Submit
from triton_mblt.worker.supervisor import Log, Loss, Supervisor

_END_OF_DRAIN = 0  # among the leases; handles begin at 1


class LmService:
    """One model, N workers (one for now). `log` takes a level (debug, info, warning, error) and a text.

    `engine` is the entry point of the engine class that workers load.
    """

    def __init__(self, settings: Settings, log: Log, *, engine: str = PRODUCT_ENGINE, workers: int = 1) -> None:
        self._settings = settings
        self._log = log
        self._handles = itertools.count(1)
        self._stats_numbers = itertools.count(1)
        self._changed = (
            threading.Condition()
        )  # guards all below; notified when a worker's standing or a stats reply changes
        self._open: dict[int, OpenRequest] = {}
        self._ready: set[int] = set()
        self._model: ModelInfo | None = None
        self._load_failure: Loss | None = None  # of the last start; None while a worker is ready
        self._refusal: ErrorInfo | None = None  # set by drain and close
        self._stats_replies: dict[int, dict[int, dict[str, Any]]] = {}
        self._leases = LeaseClock(self._lease_over)
        self._supervisor = Supervisor(settings, engine, workers, self, log)
        self._parent = ParentWatch(lambda: self._supervisor.close(0.0))

    # ---- life ----

    def start(self) -> None:
        """Begin to start the workers; returns at once."""
        self._leases.start()
        self._supervisor.start()
        try:
            self._parent.start()
        except OSError as error:
            self._log(
                "warning", f"cannot watch the server's process ({error}): after its death a worker may last seconds"
            )

    @property
    def model(self) -> ModelInfo | None:
        """Limits of the model; None until a worker was ready for the first time."""
        return self._model

    def wait_ready(self, timeout_s: float) -> ModelInfo:
        """Wait for a worker. Raises ConfigError when the model cannot be loaded, WorkerRestarting at the time limit."""
        limit = time.monotonic() + timeout_s
        with self._changed:
            while not self._ready or self._model is None:
                failure = self._load_failure
                if failure is not None and failure.permanent and failure.cause is not None:
                    raise ConfigError(failure.cause.message, param=failure.cause.param)
                left = limit - time.monotonic()
                if left <= 0:
                    reason = "" if failure is None else f": {failure.error.message}"
                    raise WorkerRestarting(f"no NPU worker was ready within {timeout_s:g} s{reason}")
                self._changed.wait(left)
            return self._model

    def drain(self, limit_s: float = 0.0) -> None:
        """Refuse new requests from now on; what is open goes on, but ends with WorkerRestarting after `limit_s` unless
        that is 0. Idempotent; the last limit holds. Raises InvalidRequest (limit_s)."""
        check_seconds("limit_s", limit_s)
        with self._changed:
            if self._refusal is None:
                self._refusal = WorkerRestarting("the server is draining and takes no new requests").info()
        if limit_s > 0:
            self._leases.set(_END_OF_DRAIN, limit_s)
        else:
            self._leases.drop(_END_OF_DRAIN)

    def close(self) -> None:
        """Fail what is open, end the workers and all threads. Idempotent; nothing is delivered after it returns."""
        error = WorkerRestarting("the server is stopping")
        with self._changed:
            self._refusal = error.info()
        self._end_open(error)
        self._supervisor.close(self._settings.drain_s)
        self._leases.close()
        self._parent.close()

    # ---- requests ----

    def next_handle(self) -> int:
        """A handle for GenerateRequest, unique for the life of this service."""
        return next(self._handles)

    def submit(
        self, request: GenerateRequest, deliver: Deliver, *, abort_token: str = "", lease_s: float = 0.0
    ) -> None:
        """Open a request. `deliver` gets its outputs in order, the last one final, on a thread of the service: it must
        be quick. Without a ready worker the request waits for the next one, as long as a worker takes to start.

        Raises, before anything is queued: InvalidRequest (prompt, lease_s), Overloaded (queue full), WorkerRestarting
        (draining, or the model cannot be loaded).
        """
        check_seconds("lease_s", lease_s)
        model = self._model
        if model is not None:
            check_request(request, model)
        record = OpenRequest(request, deliver, abort_token, lease_s)
        with self._changed:
            if model is None and self._model is not None:  # the first worker became ready just now
                check_request(request, self._model)
            self._check_room()
            if request.handle in self._open:
                raise ValueError(f"handle {request.handle} is open already")
            self._open[request.handle] = record
            if lease_s > 0:
                self._leases.set(request.handle, lease_s)
            if self._ready:
                self._send_to_worker(record)

    def cancel(self, handle: int, reason: str) -> None:
        """End a request with CANCELLED and `reason`, at its worker's next step. Idempotent; ignores unknown handles."""
        with self._changed:
            record = self._open.get(handle)
            if record is None or self._abort_at_worker(record, reason):
                return
            self._forget(record)
        self._fail(record, Cancelled(reason))

    def abort(self, key: SequenceKey | None, request_id: str, abort_token: str) -> bool:
        """Cancel the open requests with this key and request id (each counts when given) and this token.

        True when there was one, also when its end is only on its way. Raises InvalidRequest when neither is given.
        """
        handles = [record.request.handle for record in self._named(key, request_id, abort_token)]
        for handle in handles:
            self.cancel(handle, "the request was aborted by its client")
        return bool(handles)

    def renew(self, key: SequenceKey | None, request_id: str, abort_token: str, lease_s: float) -> bool:
        """Start these requests' leases anew, with `lease_s` or, when that is 0, their last length. Else as `abort`."""
        check_seconds("lease_s", lease_s)
        with self._changed:
            records = self._named(key, request_id, abort_token)
            for record in records:
                record.lease_s = lease_s if lease_s > 0 else record.lease_s
                if record.lease_s > 0:
                    self._leases.set(record.request.handle, record.lease_s)
        return bool(records)

    def stats(self, timeout_s: float = 1.0) -> dict[str, Any]:
        """Open and waiting requests, the workers' standing, and each engine's stats (None when it does not answer)."""
        number = next(self._stats_numbers)
        limit = time.monotonic() + timeout_s
        with self._changed:
            asked = set(self._ready)
            replies = self._stats_replies[number] = {}
            for index in asked:
                self._supervisor.keepers[index].send(StatsRequest(number))
            while not (asked & self._ready) <= replies.keys() and (left := limit - time.monotonic()) > 0:
                self._changed.wait(left)
            del self._stats_replies[number]
            model = None if self._model is None else {f: getattr(self._model, f) for f in ModelInfo.__struct_fields__}
            return {
                "model": model,
                "open_requests": len(self._open),
                "waiting_requests": sum(record.worker is None for record in self._open.values()),
                "draining": self._refusal is not None,
                "workers": [
                    {
                        "index": index,
                        "state": keeper.state,
                        "pid": keeper.pid,
                        "restarts": max(0, keeper.starts - 1),
                        "last_error": keeper.last_error,
                        "engine": replies.get(index),
                    }
                    for index, keeper in enumerate(self._supervisor.keepers)
                ],
            }

    # ---- called by the keepers (supervisor.Listener) ----

    def worker_ready(self, index: int, info: ModelInfo) -> None:
        """Requests that waited go to the worker, in the order they came."""
        refused: list[tuple[OpenRequest, InvalidRequest]] = []
        with self._changed:
            self._ready.add(index)
            self._model = info
            self._load_failure = None
            for record in [record for record in self._open.values() if record.worker is None]:
                error = request_error(record.request, info)
                if error is None:
                    self._send_to_worker(record)
                else:
                    self._forget(record)
                    refused.append((record, error))
            self._changed.notify_all()
        for record, refusal in refused:
            self._fail(record, refusal)

    def worker_took(self, handle: int) -> None:
        record = self._open.get(handle)
        if record is not None:
            record.taken = True

    def worker_said(self, outputs: list[Output]) -> None:
        for output in outputs:
            record = self._open.get(output.handle)
            if record is None:
                continue  # ended here before: closed, or its callback failed
            if output.final:
                with self._changed:
                    self._forget(record)
            self._give(record, output)

    def worker_stats(self, index: int, number: int, stats: dict[str, Any]) -> None:
        with self._changed:
            if number in self._stats_replies:
                self._stats_replies[number][index] = stats
                self._changed.notify_all()

    def worker_lost(self, index: int, loss: Loss) -> None:
        """Its requests end with the loss; those that wait for a worker end too when this start was their hope."""
        with self._changed:
            self._ready.discard(index)
            if not self._ready and loss.cause is not None:
                self._load_failure = loss
            mine = [record for record in self._open.values() if record.worker == index]
            lost = [record for record in mine if record.taken or record.aborted]
            for record in mine:
                if record not in lost:
                    record.worker = None  # it went to a process already dead: another one may begin it
                    if self._ready:
                        self._send_to_worker(record)
            if not self._ready and loss.cause is not None:
                lost += [record for record in self._open.values() if record.worker is None]
            for record in lost:
                self._forget(record)
            self._changed.notify_all()
        for record in lost:
            self._fail(record, error_of(loss.error))

    # ---- inside; the first group needs the lock ----

    def _check_room(self) -> None:
        if self._refusal is not None:
            raise error_of(self._refusal)
        if self._load_failure is not None and self._load_failure.permanent:
            raise error_of(self._load_failure.error)
        room = self._settings.max_queue + (0 if self._model is None else self._model.slots)
        if len(self._open) >= room:
            raise Overloaded(f"{len(self._open)} requests are open; max_queue is {self._settings.max_queue}, try later")

    def _send_to_worker(self, record: OpenRequest) -> None:
        """To the ready worker with the fewest open requests."""
        load = dict.fromkeys(self._ready, 0)
        for other in self._open.values():
            if other.worker in load:
                load[other.worker] += 1
        record.worker = min(load, key=load.__getitem__)
        record.taken = False
        self._supervisor.keepers[record.worker].send(Submit(record.request))

    def _abort_at_worker(self, record: OpenRequest, reason: str) -> bool:
        """Ask the record's worker to end it, once. False when it is at no worker."""
        if record.worker is None:
            return False
        if not record.aborted:
            record.aborted = True
            self._supervisor.keepers[record.worker].send(Abort(record.request.handle, reason))
        return True

    def _forget(self, record: OpenRequest) -> None:
        self._open.pop(record.request.handle, None)
        self._leases.drop(record.request.handle)

    def _named(self, key: SequenceKey | None, request_id: str, abort_token: str) -> list[OpenRequest]:
        """Open requests that a control request names and may touch. Tokens are compared in constant time."""
        if key is None and request_id == "":
            raise InvalidRequest("name the sequence or the request id", param="sequence_id")
        token = abort_token.encode()
        with self._changed:
            return [
                record
                for record in self._open.values()
                if (key is None or record.request.key == key)
                and (request_id == "" or record.request.request_id == request_id)
                and record.abort_token != ""
                and hmac.compare_digest(record.abort_token.encode(), token)
            ]

    def _end_open(self, error: MbltError) -> None:
        with self._changed:
            records = list(self._open.values())
            for record in records:
                self._abort_at_worker(record, error.message)
                self._forget(record)
        for record in records:
            self._fail(record, error)

    def _lease_over(self, handle: int) -> None:
        if handle == _END_OF_DRAIN:
            self._end_open(WorkerRestarting("the server is stopping"))
            return
        record = self._open.get(handle)
        if record is not None:
            self.cancel(handle, f"the lease of {record.lease_s:g} s ran out without a renewal")

    def _fail(self, record: OpenRequest, error: MbltError) -> None:
        self._give(record, record.failure(error))

    def _give(self, record: OpenRequest, output: Output) -> None:
        try:
            record.give(output)
        except Exception:  # noqa: BLE001 -- the caller's bug must not cost the other requests their keeper
            self._log("error", f"delivering to request {record.request.request_id!r} failed:\n{traceback.format_exc()}")
            with self._changed:
                self._abort_at_worker(record, "its output could not be delivered")
                self._forget(record)
