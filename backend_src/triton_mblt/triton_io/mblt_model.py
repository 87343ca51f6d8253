"""Triton model `mblt`: the front for callers without sequence ids. Makes one, drives the ensemble, relays its answers.

Owns the ids, and that an answer nobody waits for is aborted: a cancellation does not pass through an ensemble, so it
goes through the control socket of the LM. Every request has a lease, in case this stub dies.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from triton_mblt.core.errors import Cancelled, Code, ErrorInfo, MbltError, Overloaded, parse_error
from triton_mblt.core.sampling_params import Scalar
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.cancellation import CancellationPoller
from triton_mblt.triton_io.deployment import read_deployment
from triton_mblt.triton_io.front_leases import LEASE_S, FrontLeases
from triton_mblt.triton_io.lm_answer import ERROR
from triton_mblt.triton_io.lm_request import ERRORS_AS_TEXT
from triton_mblt.triton_io.ordered_pool import OrderedPool
from triton_mblt.triton_io.sender import Responder, guarded
from triton_mblt.worker.control import call

_OUTPUTS = (
    "text_output",
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "num_input_tokens",
    "num_output_tokens",
    "token_ids",
    "num_cached_tokens",
    "prompt_logprobs",
)
_YES, _NO = np.array([True]), np.array([False])
_ENSEMBLE_PREFIX = re.compile(r"^in ensemble '[^']*', ")


class Job(msgspec.Struct, frozen=True):
    """One request on its way through the ensemble. `unclaimed` has an element until somebody decides what becomes of
    it: sent on, or ended because its client left first."""

    number: int
    responder: Responder
    inputs: dict[str, Any]
    who: wire.Identity
    parameters: dict[str, Scalar]
    renews: bool
    unclaimed: list[bool]

    def claim(self) -> bool:
        """True for the first caller only. Thread-safe."""
        try:
            return self.unclaimed.pop()
        except IndexError:
            return False

    def control(self, verb: str) -> dict[str, Any]:
        """A control request that names this job at the LM."""
        token = self.parameters["abort_token"]
        return {"verb": verb, "sequence_id": self.who.correlation_id, "abort_token": token}


class MbltModel:
    """`execute` only queues; each request under way holds a thread of the pool (settings.bls_threads)."""

    def initialize(self, args: Mapping[str, str]) -> None:
        try:
            self._deployment = read_deployment(args)
        except MbltError as error:
            raise wire.load_error(error.info()) from error
        settings = self._deployment.settings
        self._room = settings.bls_threads + settings.max_queue
        self._prefix = f"mblt-{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        self._pool = OrderedPool(settings.bls_threads, "mblt-front")
        self._poller = CancellationPoller(settings.cancel_poll_s)
        self._leases = FrontLeases(self._control)

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            responder = Responder(request, wire.request_id(request))
            guarded(responder, partial(self._accept, request, responder))

    def finalize(self) -> None:
        self._pool.close()
        self._poller.close()
        self._leases.close()

    def _accept(self, request: Any, responder: Responder) -> None:
        if self._pool.count >= self._room:
            raise Overloaded(f"{self._pool.count} requests are open here, the limit is {self._room}; try later")
        number = next(self._numbers)
        given = wire.parameters(request)
        token = given.get("abort_token", "")
        if token == "":  # an empty one is none, and the front needs one
            token = secrets.token_hex(16)
        job = Job(
            number=number,
            responder=responder,
            inputs=wire.copied_inputs(request),
            who=wire.Identity(responder.request_id, f"{self._prefix}-{number}", start=True, end=True),
            parameters={"lease_s": LEASE_S, **given, "abort_token": token, ERRORS_AS_TEXT: True},
            renews="lease_s" not in given,
            unclaimed=[True],
        )
        self._pool.put(number, partial(guarded, responder, partial(self._relay, job)))
        self._poller.watch(responder, partial(self._client_left, job))

    def _relay(self, job: Job) -> None:
        """The ensemble's answer to the caller. The final flag goes with the response that has the finish reason."""
        if not job.claim():
            return
        if job.renews:
            self._leases.hold(job.number, job.control("renew"))
        try:
            wants_reason = bool(job.inputs.get("return_finish_reason", _NO)[0])
            inputs = wire.tensors_of({**job.inputs, "return_finish_reason": _YES})
            for answer in wire.call_model(self._deployment.ensemble, inputs, _OUTPUTS, job.who, job.parameters):
                _pass_on(answer, job.responder, wants_reason)
        finally:
            self._leases.drop(job.number)
        if not job.responder.closed:
            raise RuntimeError("the ensemble's answer had no end")

    def _client_left(self, job: Job) -> None:
        """Called again and again until the request has ended: an abort that came before its request finds nothing."""
        if job.claim():
            job.responder.fail(Cancelled("the client cancelled or left").info(job.responder.request_id))
        else:
            self._control(job.control("abort"))

    def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        return call(self._deployment.lm, request)


def _pass_on(answer: Any, responder: Responder, wants_reason: bool) -> None:
    error = wire.response_error(answer)
    if error is not None:
        responder.fail(_own_error(*error, responder.request_id))
        return
    values = wire.output_values(answer)
    if not values:
        return
    reason = values["finish_reason"][0].decode()
    if reason == ERROR:
        responder.fail(_own_error(values["text_output"][0].decode(), "INTERNAL", responder.request_id))
        return
    if not wants_reason:
        del values["finish_reason"]
    responder.send(wire.tensors_of(values), final=reason != "None")


def _own_error(text: str, code: Code, request_id: str) -> ErrorInfo:
    """The error inside an ensemble's error text: ours with its tail, or one of Triton itself."""
    ours = parse_error(text)
    if ours is not None:
        return msgspec.structs.replace(ours, request_id=request_id)
    return ErrorInfo(code, _ENSEMBLE_PREFIX.sub("", text), "", request_id)
