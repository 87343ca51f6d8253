"""The LM service with the product's engine in a real worker process, on the emulated NPU, without Triton."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from lm_service import LIMIT_S, Collector
from tiny_models import greedy, reference_model, tiny_package

from triton_mblt.core.errors import ConfigError
from triton_mblt.core.request import GenerateRequest, OutputOptions, SequenceKey
from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.core.settings import Settings
from triton_mblt.worker.service import LmService

FOREVER = 10_000
SLOTS = 4
PROMPTS = [[3 + (7 * i + j * j) % 200 for j in range(5 + 11 * i)] for i in range(8)]

Start = Callable[..., LmService]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_package("llama", tmp_path_factory.mktemp("models"), batch=SLOTS, max_cache=256)


@pytest.fixture
def start(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts services that are closed at the end of the test."""
    monkeypatch.setenv("MBLT_EMULATOR_RUN_DIR", str(tmp_path))
    services = []

    def begin(model: Path = package, **environment: str) -> LmService:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        service = LmService(Settings(model=str(model), npu="emulated"), lambda level, text: None)
        services.append(service)
        service.start()
        return service

    yield begin
    for service in services:
        service.close()


def ask(service: LmService, prompt: list[int], key: int, *, max_tokens: int = 20, abort_token: str = "") -> Collector:
    collector = Collector()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=1, ignore_eos=True)
    request = GenerateRequest(
        handle=service.next_handle(), request_id=f"r{key}", key=SequenceKey.of(key), start=True, end=True,
        prompt=np.asarray(prompt, dtype="<i4").tobytes(), sampling=sampling, outputs=OutputOptions(),
    )  # fmt: skip
    service.submit(request, collector, abort_token=abort_token)
    return collector


def test_answers_are_the_references_also_after_a_kill(start: Start) -> None:
    service = start()
    assert service.wait_ready(LIMIT_S * 4).slots == SLOTS
    model = reference_model("llama")
    expected = [greedy(model, prompt, 20, stop_at_eos=False) for prompt in PROMPTS]
    for _ in range(2):
        askers = [ask(service, prompt, i) for i, prompt in enumerate(PROMPTS, 1)]
        assert [asker.code for asker in askers] == [None] * len(PROMPTS)
        assert [asker.tokens for asker in askers] == expected
        running = [ask(service, prompt, i, max_tokens=200) for i, prompt in enumerate(PROMPTS, 1)]
        running[0].wait_some()
        os.kill(service.stats()["workers"][0]["pid"], signal.SIGKILL)
        assert {asker.code for asker in running} <= {"UNAVAILABLE", None}
        assert running[-1].code == "UNAVAILABLE"


def test_an_abort_frees_the_slot(start: Start) -> None:
    service = start()
    service.wait_ready(LIMIT_S * 4)
    askers = [ask(service, PROMPTS[0], key, max_tokens=200, abort_token="t") for key in range(1, 9)]
    for key in range(8, 0, -1):
        service.abort(SequenceKey.of(key), f"r{key}", "t")
    assert {asker.code for asker in askers} <= {"CANCELLED", None}
    engine = service.stats()["workers"][0]["engine"]
    assert engine["slots"]["free"] == SLOTS
    assert engine["turns"]["open"] == 0


def test_a_process_that_the_device_aborts_costs_only_what_was_open(start: Start) -> None:
    service = start(MBLT_EMULATOR_FAULTS=json.dumps([{"kind": "abort", "at_call": 5}]))
    service.wait_ready(LIMIT_S * 4)
    error = ask(service, PROMPTS[0], 1, max_tokens=100).wait_final().error
    assert error is not None
    assert (error.code, "SIGABRT" in error.message) == ("UNAVAILABLE", True)
    assert ask(service, PROMPTS[0], 1, max_tokens=2).code is None


def test_a_folder_that_is_no_package_cannot_be_loaded(start: Start, tmp_path: Path) -> None:
    service = start(tmp_path)
    with pytest.raises(ConfigError):
        service.wait_ready(LIMIT_S * 4)
