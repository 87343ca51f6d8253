"""Helpers for tests of LmService: a collector per request, requests from token lists, a service on a fake engine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from triton_mblt.core.events import Output
from triton_mblt.core.request import GenerateRequest, OutputOptions, SequenceKey
from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.core.settings import Settings
from triton_mblt.worker.service import LmService

LIMIT_S = 30.0


class Collector:
    """Takes one request's outputs and fails on anything after the final one."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.finals = 0
        self._changed = threading.Condition()

    def __call__(self, output: Output) -> None:
        with self._changed:
            self.outputs.append(output)
            self.finals += output.final
            self._changed.notify_all()

    def wait_final(self, limit_s: float = LIMIT_S) -> Output:
        return self._wait(lambda: self.finals > 0, limit_s)

    def wait_some(self, count: int = 1) -> Output:
        return self._wait(lambda: len(self.outputs) >= count)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def code(self) -> str | None:
        """Error code of the final output, None when it ended well."""
        error = self.wait_final().error
        return None if error is None else error.code

    def _wait(self, condition: Any, limit_s: float = LIMIT_S) -> Output:
        with self._changed:
            assert self._changed.wait_for(condition, limit_s), f"nothing in {limit_s} s; so far {self.outputs[-3:]}"
            return self.outputs[-1]


def fake_settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {"model": "fine", "npu": "emulated", "worker_backoff_s": 0.05, "worker_backoff_max_s": 0.2}
    return Settings(**{**values, **changes})


@contextlib.contextmanager
def running(settings: Settings | None = None, *, wait: bool = True, **options: Any) -> Iterator[LmService]:
    """A started service on the fake engine; closed at the end."""
    logs: list[tuple[str, str]] = []
    service = LmService(
        fake_settings() if settings is None else settings,
        lambda level, text: logs.append((level, text)),
        engine="fake_engine:FakeEngine",
        **options,
    )
    service.start()
    try:
        if wait:
            service.wait_ready(LIMIT_S)
        yield service
    finally:
        service.close()


def request(
    service: LmService, tokens: list[int], *, max_tokens: int = 5, key: int | str = 1, request_id: str = "r"
) -> GenerateRequest:
    return GenerateRequest(
        handle=service.next_handle(), request_id=request_id, key=SequenceKey.of(key), start=True, end=True,
        prompt=np.asarray(tokens, dtype="<i4").tobytes(), sampling=SamplingParams(max_tokens=max_tokens, seed=1),
        outputs=OutputOptions(),
    )  # fmt: skip


def ask(service: LmService, tokens: list[int], *, max_tokens: int = 5, key: int | str = 1, **options: Any) -> Collector:
    collector = Collector()
    service.submit(request(service, tokens, max_tokens=max_tokens, key=key), collector, **options)
    return collector


def greedy_all_at_once(
    settings: Settings, prompts: list[list[int]], count: int, *, ignore_eos: bool = True
) -> list[list[int]]:
    """Token ids for all prompts, sent at once to the product's engine in a worker of its own."""
    service = LmService(settings, lambda level, text: None)
    sampling = SamplingParams(max_tokens=count, temperature=0.0, seed=1, ignore_eos=ignore_eos)
    collectors = [Collector() for _ in prompts]
    try:
        service.start()
        service.wait_ready(120)
        for number, (prompt, collector) in enumerate(zip(prompts, collectors, strict=True)):
            one = msgspec.structs.replace(request(service, prompt, key=number + 1), sampling=sampling)
            service.submit(one, collector)
        return [list(collector.wait_final(180).token_ids) for collector in collectors]
    finally:
        service.close()
