"""Turns of one sequence, sent without waiting: never refused for order, answered in order, whatever the first costs."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as sync
import tritonclient.grpc.aio as aio
from lm_control import Control
from triton_server import TritonServer

from triton_mblt.core.errors import parse_error

pytestmark = pytest.mark.e2e

PAIRS = 500  # by each of the two clients
IN_FLIGHT = 16
HUGE = "the rain of the south " * 9_500  # 200 KB, far longer than the cache
LONG = "the rain " * 40
BROKEN = b"\xff\xfe"
FIRST_TURNS = (HUGE.encode(), LONG.encode(), HUGE.encode(), BROKEN)


def pair(number: int, sequence: str) -> list[dict[str, Any]]:
    """Two turns; the first is refused by the LM, long, or refused by the tokenizer."""
    texts = (FIRST_TURNS[number % len(FIRST_TURNS)], b"go on")
    return [
        {
            "model_name": "mblt_ensemble",
            "inputs": [tensor("text_input", text), tensor("sampling_parameters", b'{"max_tokens": 2}')],
            "request_id": f"{sequence}/{turn}",
            "sequence_id": sequence,
            "sequence_start": turn == 0,
            "sequence_end": turn == 1,
        }
        for turn, text in enumerate(texts)
    ]


def tensor(name: str, value: bytes) -> sync.InferInput:
    made = sync.InferInput(name, [1], "BYTES")
    made.set_data_from_numpy(np.array([value], dtype=np.object_))
    return made


def answered(result: Any, error: Any) -> str:
    """The id of the request that was answered or refused; fails for a refusal of Triton's own."""
    if error is None:
        return str(result.get_response().id)
    info = parse_error(error.message())
    assert info is not None, error.message()
    assert info.code == "INVALID_ARG"
    assert info.param in ("prompt", "text_input")
    return info.request_id


def check(answers: list[str], sequences: list[str]) -> None:
    assert sorted(answers) == sorted(f"{sequence}/{turn}" for sequence in sequences for turn in (0, 1))
    for sequence in sequences:
        assert answers.index(f"{sequence}/0") < answers.index(f"{sequence}/1")


def test_the_sync_client(server: TritonServer, control: Control) -> None:
    got: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    sequences = [f"sync-{number}" for number in range(PAIRS)]
    answers: list[str] = []
    with sync.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: got.put((result, error)))
        for number, sequence in enumerate(sequences):
            for request in pair(number, sequence):
                client.async_stream_infer(**request)
            while 2 * (number + 1) - len(answers) > IN_FLIGHT:
                answers.append(answered(*got.get(timeout=60)))
        while len(answers) < 2 * PAIRS:
            answers.append(answered(*got.get(timeout=60)))
        client.stop_stream()
    check(answers, sequences)


def test_the_aio_client(server: TritonServer, control: Control) -> None:
    sequences = [f"aio-{number}" for number in range(PAIRS)]
    answers = asyncio.run(aio_answers(server.grpc, sequences))
    check(answers, sequences)


async def aio_answers(address: str, sequences: list[str]) -> list[str]:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def requests() -> Any:
        for number, sequence in enumerate(sequences):
            for request in pair(number, sequence):
                await room.acquire()
                yield request

    answers = []
    async with aio.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(requests()):
            answers.append(answered(result, error))
            room.release()
    return answers
