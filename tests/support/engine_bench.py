"""An engine on the hand-computable device, and what it has said so far."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from fake_npu import FakeNpu, make_spec

from triton_mblt.core.events import Output
from triton_mblt.core.request import GenerateRequest, OutputOptions, SequenceKey
from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.core.settings import Settings
from triton_mblt.engine.engine import Engine
from triton_mblt.text.tokenizer import TextTokenizer

VOCAB = 259


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(length * 1000 + seed).choices(range(3, VOCAB), k=length)


class Bench:
    """An engine on a fake device, and what it has said so far."""

    def __init__(self, tokenizer: TextTokenizer, **spec: Any) -> None:
        self.npu = FakeNpu(make_spec(vocab=VOCAB, **spec))
        settings = Settings(model="fake", npu="emulated")
        self.engine = Engine(self.npu, tokenizer, settings)
        self.tokenizer = tokenizer
        self.said: dict[int, list[Output]] = {}
        self._handles = iter(range(1, 1_000_000))

    def submit(
        self,
        prompt: list[int],
        *,
        key: object = None,
        start: bool = True,
        stream: bool = True,
        salt: str = "",
        **sampling: Any,
    ) -> int:
        handle = next(self._handles)
        sampling.setdefault("temperature", 0.0)
        sampling.setdefault("ignore_eos", True)
        request = GenerateRequest(
            handle=handle,
            request_id=f"r{handle}",
            key=SequenceKey.of(key if isinstance(key, (int, str)) else handle),
            start=start,
            end=False,
            prompt=np.array(prompt, dtype="<i4").tobytes(),
            sampling=SamplingParams(seed=handle, **sampling),
            outputs=OutputOptions(stream=stream, cumulative_logprob=True),
            cache_salt=salt,
        )
        self.said[handle] = []
        self.engine.submit(request)
        return handle

    def heard(self) -> list[Output]:
        """One step, and what was handed over in it."""
        said: list[Any] = []
        self.engine.step(said.extend)
        return self.engine.render(said)

    def step(self) -> None:
        for output in self.heard():
            assert not (self.said[output.handle] and self.said[output.handle][-1].final), "spoke after its end"
            self.said[output.handle].append(output)

    def run(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.engine.has_work():
                break
            self.step()
        assert not self.engine.has_work()
        slots = self.engine.stats()["slots"]
        assert slots["free"] == slots["total"]

    def tokens(self, handle: int) -> list[int]:
        return [token for output in self.said[handle] for token in output.token_ids]

    def last(self, handle: int) -> Output:
        assert self.said[handle][-1].final
        return self.said[handle][-1]
