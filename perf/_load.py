"""Streams of one model, through tritonclient's asyncio gRPC client, with the time of every token. Judges nothing.

All streams share one connection and one event loop, as a frontend's would.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpcclient


@dataclass
class StreamLog:
    """One answer. `times` (seconds, monotonic clock) and `counts` (tokens) have one entry per response with tokens."""

    sent: float
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def ttft(self) -> float:
        """Time to first token, seconds."""
        return self.times[0] - self.sent

    def gaps(self) -> list[float]:
        """Times between tokens (ITL), seconds; a response of several tokens counts once for each."""
        found: list[float] = []
        for before, now, count in zip(self.times, self.times[1:], self.counts[1:], strict=False):
            found += [(now - before) / count] * count
        return found


@dataclass(frozen=True)
class Load:
    """What to send. Each prompt is one stream; a sequence model gets a fresh id with START and END."""

    url: str
    model: str
    prompts: Sequence[str]
    sampling: Mapping[str, Any]
    sequences: bool = True
    limit_s: float = 600.0


def run(load: Load) -> list[StreamLog]:
    """Send all prompts at once and wait for all answers. Errors: RuntimeError when a stream failed."""
    logs = asyncio.run(_run(load))
    failed = [log.error for log in logs if log.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(logs)} streams failed, the first with: {failed[0]}")
    return logs


async def _run(load: Load) -> list[StreamLog]:
    async with grpcclient.InferenceServerClient(load.url) as client:
        streams = [_stream(client, load, prompt) for prompt in load.prompts]
        return list(await asyncio.wait_for(asyncio.gather(*streams), load.limit_s))


async def _stream(client: grpcclient.InferenceServerClient, load: Load, prompt: str) -> StreamLog:
    log = StreamLog(sent=time.monotonic())
    async for result, error in client.stream_infer(_one(_request(load, prompt))):
        if error is not None:
            log.error = str(error)
            break
        now = time.monotonic()
        _note(log, result, now)
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
    return log


def _note(log: StreamLog, result: grpcclient.InferResult, now: float) -> None:
    counts = result.as_numpy("num_output_tokens")
    count = int(counts.reshape(-1)[0]) if counts is not None and counts.size else 0
    reason = result.as_numpy("finish_reason")
    if reason is not None and reason.reshape(-1)[0] != b"None":
        log.finish_reason = reason.reshape(-1)[0].decode()
    if count:
        log.times.append(now)
        log.counts.append(count)
        log.texts.append(result.as_numpy("text_output").reshape(-1)[0].decode("utf-8", "replace"))


def _request(load: Load, prompt: str) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model_name": load.model,
        "inputs": [
            _text("text_input", prompt),
            _text("sampling_parameters", json.dumps(dict(load.sampling))),
            *(_flag(name) for name in ("stream", "return_finish_reason", "return_num_output_tokens")),
        ],
        "request_id": uuid.uuid4().hex,
    }
    if load.sequences:
        request |= {"sequence_id": f"perf-{uuid.uuid4().hex}", "sequence_start": True, "sequence_end": True}
    return request


async def _one(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request


def _text(name: str, value: str) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, [1], "BYTES")
    made.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
    return made


def _flag(name: str) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, [1], "BOOL")
    made.set_data_from_numpy(np.array([True]))
    return made
