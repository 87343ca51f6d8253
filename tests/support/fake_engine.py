"""An engine whose answers can be computed by hand, for tests of the worker process; loaded as `fake_engine:FakeEngine`.

Token i of an answer is (sum of the prompt + i) modulo the vocabulary, its text is "<token> ". Every step gives each
open request one token. The setting `model` says how loading goes; the first token of a prompt says what happens in
the step that sees it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from triton_mblt.core.errors import Cancelled, ConfigError, NpuFault
from triton_mblt.core.events import Output
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.request import GenerateRequest
from triton_mblt.core.settings import Settings

VOCAB = 1000
MAX_MODEL_LEN = 1_000_000
STEP_S = 0.001

# First token of a prompt.
HANG, RAISE, ALLOCATE, HANG_WITH_GIL = 1, 2, 3, 4

# Settings.model. Also "count:<file>": an NpuFault at the first load, when the file is not there; then it loads; and
# "file:<file>": a ConfigError when the file is not there.
MISSING, FAULTY, BUGGY, SLOW, NEVER = "missing", "faulty", "buggy", "slow", "never"


def answer(prompt: list[int], count: int) -> list[int]:
    return [(sum(prompt) + i) % VOCAB for i in range(count)]


class FakeEngine:
    def __init__(self, settings: Settings) -> None:
        self.info = ModelInfo(
            name=settings.name, vocab_size=VOCAB, max_model_len=MAX_MODEL_LEN, slots=8, prefill_chunk=128,
            logits="last", eos_token_ids=(0,), device="fake",
        )  # fmt: skip
        self._open: dict[int, GenerateRequest] = {}
        self._sent: dict[int, int] = {}
        self._sums: dict[int, int] = {}
        self._notices: list[Output] = []
        self._steps = 0

    @classmethod
    def load(cls, settings: Settings) -> FakeEngine:
        if settings.model == MISSING:
            raise ConfigError("there is no such model folder", param="model")
        if settings.model == FAULTY:
            raise NpuFault("the device is busy")
        if settings.model == BUGGY:
            raise KeyError("a bug")
        if settings.model == SLOW:
            time.sleep(0.3)
        if settings.model == NEVER:
            time.sleep(3600)
        if settings.model.startswith("file:") and not Path(settings.model.removeprefix("file:")).exists():
            raise ConfigError("the package was removed", param="model")
        if settings.model.startswith("count:"):
            mark = Path(settings.model.removeprefix("count:"))
            if not mark.exists():
                mark.touch()
                raise NpuFault("the device is busy")
        return cls(settings)

    def submit(self, request: GenerateRequest) -> None:
        self._open[request.handle] = request
        self._sent[request.handle] = 0
        self._sums[request.handle] = int(request.prompt_ids().sum(dtype=np.int64))

    def abort(self, handle: int, reason: str) -> None:
        request = self._open.get(handle)
        if request is not None:
            self._forget(handle)
            self._notices.append(Output(handle, "", (), error=Cancelled(reason).info(request.request_id)))

    def has_work(self) -> bool:
        return bool(self._open or self._notices)

    def step(self, hand_over: Callable[[list[Output]], None]) -> None:
        outputs, self._notices = self._notices, []
        hand_over([*outputs, *self._answers()])

    def _answers(self) -> list[Output]:
        outputs: list[Output] = []
        if not self._open:
            return outputs
        self._steps += 1
        time.sleep(STEP_S)
        for handle, request in list(self._open.items()):
            _misbehave(int(request.prompt_ids()[0]))
            index = self._sent[handle]
            token = (self._sums[handle] + index) % VOCAB
            self._sent[handle] = index + 1
            last = index + 1 == request.sampling.max_tokens
            outputs.append(Output(handle, f"{token} ", (token,), finish_reason="length" if last else None))
            if last:
                self._forget(handle)
        return outputs

    def render(self, said: Sequence[Output]) -> list[Output]:
        return list(said)

    def stats(self) -> dict[str, Any]:
        return {"steps": self._steps, "open": len(self._open)}

    def close(self) -> None:
        pass

    def _forget(self, handle: int) -> None:
        del self._open[handle], self._sent[handle], self._sums[handle]


def _misbehave(first: int) -> None:
    if first == HANG:
        time.sleep(3600)
    if first == HANG_WITH_GIL:
        ctypes.PyDLL(None).sleep(3600)
    if first == RAISE:
        raise RuntimeError("a bug in the engine")
    if first == ALLOCATE:
        msgspec.json.encode(np.ones(1 << 30).tolist())
