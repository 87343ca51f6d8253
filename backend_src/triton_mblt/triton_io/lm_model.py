"""Triton model `lm`: parses and submits; everything slow happens behind the service and on the sender's lanes.

Owns the life of the service, its control socket, and the threads around it. Sampling defaults come from the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from triton_mblt.core.errors import ConfigError, MbltError
from triton_mblt.core.events import Output
from triton_mblt.core.package import resolve_package
from triton_mblt.core.sampling_params import SamplingDefaults, SamplingLimits
from triton_mblt.core.settings import Settings
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.cancellation import CancellationPoller
from triton_mblt.triton_io.deployment import read_deployment
from triton_mblt.triton_io.lm_answer import Answer
from triton_mblt.triton_io.lm_request import Door
from triton_mblt.triton_io.metrics import Metrics
from triton_mblt.triton_io.sender import Lanes, Responder, guarded
from triton_mblt.worker.control import ControlServer
from triton_mblt.worker.service import LmService

_LANES = 2


class LmModel:
    """One stub per deployment, whatever the number of NPU workers."""

    def initialize(self, args: Mapping[str, str]) -> None:
        try:
            deployment = read_deployment(args)
            settings = deployment.settings
            self._door = Door(_defaults(settings), SamplingLimits(max_logprobs=settings.max_logprobs))
            self._service = LmService(settings, _logger(settings.log_level))
            self._control = ControlServer(self._service, deployment.name, _admin_key(settings))
            _load(self._service, settings.worker_start_limit_s)
            self._control.start()
        except MbltError as error:
            raise wire.load_error(error.info()) from error
        self._lanes = Lanes(_LANES, "mblt-send")
        self._poller = CancellationPoller(settings.cancel_poll_s)
        self._metrics = Metrics(deployment.name)

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            who = wire.identity(request)
            responder = Responder(request, who.request_id)
            guarded(responder, partial(self._submit, request, who, responder))

    def finalize(self) -> None:
        self._control.close()
        self._service.close()
        self._poller.close()
        self._lanes.close()
        self._metrics.close()

    def _submit(self, request: Any, who: wire.Identity, responder: Responder) -> None:
        handle = self._service.next_handle()
        arrival = self._door.read(request, who, handle)
        turn = arrival.request
        lane = hash(turn.key)  # one for a sequence: its turns are answered in their order
        answer = Answer(responder, arrival)

        def deliver(output: Output) -> None:
            self._metrics.saw(output)
            self._lanes.put(lane, answer, partial(answer.send, output))

        self._service.submit(turn, deliver, abort_token=arrival.abort_token, lease_s=arrival.lease_s)
        self._metrics.opened()
        self._poller.watch(responder, partial(self._service.cancel, handle, "the client cancelled or left"))


def _load(service: LmService, limit_s: float) -> None:
    service.start()
    try:
        service.wait_ready(limit_s)
    except MbltError:
        service.close()
        raise


def _defaults(settings: Settings) -> SamplingDefaults:
    """What the package's generation_config.json says about sampling. Errors: ConfigError naming the value."""
    path = resolve_package(settings.model, settings.revision) / "generation_config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.is_file() else {}
        return SamplingDefaults.from_generation_config(config)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="model") from error
    except MbltError as error:
        raise ConfigError(f"{path}: {error.message}", param="model") from error


def _admin_key(settings: Settings) -> str:
    """The key of the control verbs that need one; "" (none may be used) when the deployment names no key file."""
    if not settings.admin_key_file:
        return ""
    try:
        return Path(settings.admin_key_file).read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read {settings.admin_key_file}: {error.strerror}", param="admin_key_file") from error


def _logger(least: str) -> Any:
    levels = ("debug", "info", "warning", "error")

    def log(level: str, text: str) -> None:
        if levels.index(level) >= levels.index(least):
            wire.log(level, text)

    return log
