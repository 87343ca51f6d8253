"""Through tritonserver, every greedy text equals transformers' own, however the requests arrive (demo model, K = 8)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from greedy import Greedy, greedy_answer
from lm_service import greedy_all_at_once
from triton_calls import Reply, Stream
from triton_server import TritonServer

from triton_mblt.core.settings import Settings
from triton_mblt.text.tokenizer import TextTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 20
SUBJECTS = ["a river", "the moon", "old bread", "Prague", "chess", "a lighthouse", "rain", "the number seven"]
FORMS = ["Write one sentence about {}.", "What is {}? Answer shortly.", "List three words that go with {}."]
CHUNK = 128

IdsOf = Callable[[Reply], list[int]]


@pytest.fixture(scope="module")
def prompts(tokenizer: TextTokenizer) -> list[list[int]]:
    """24 chat prompts; four are padded to the chunk limit and its neighbours, and to two chunks."""
    texts = [form.format(subject) for form in FORMS for subject in SUBJECTS]
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in texts]
    ids = [tokenizer.encode(chat, add_special_tokens=False) for chat in chats]
    filler = tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 40, add_special_tokens=False)
    for number, length in enumerate((CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1)):
        ids[number] = filler[: length - len(ids[number])] + ids[number]
        assert len(ids[number]) == length
    return ids


@pytest.fixture(scope="module")
def answers(reference: Any, prompts: list[list[int]]) -> list[Greedy]:
    return [greedy_answer(reference, prompt, COUNT) for prompt in prompts]


@pytest.fixture
def stream(server: TritonServer) -> Iterator[Stream]:
    with Stream(server.grpc) as opened:
        yield opened


def ask(stream: Stream, prompt: list[int], number: int) -> Reply:
    sampling = {"temperature": 0, "max_tokens": COUNT}
    return stream.send("lm", ids=prompt, sampling=sampling, sequence=number + 1, stream=True, return_token_ids=True)


@pytest.fixture
def ids_of(tokenizer: TextTokenizer) -> IdsOf:
    """Token ids of an answer, whose streamed text must be their one-shot decode."""

    def read(reply: Reply) -> list[int]:
        reply.wait(120)
        assert reply.error == ""
        ids = [token for response in reply.responses for token in response["token_ids"]]
        assert reply.text == tokenizer.decode(ids)
        return ids

    return read


@pytest.mark.parametrize("chunk", [16, 31])
def test_smaller_chunks(
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[list[int]],
    answers: list[Greedy],
    chunk: int,
) -> None:
    monkeypatch.setenv("MBLT_EMULATOR_RUN_DIR", str(tmp_path))
    settings = Settings(model=str(demo), npu="emulated", prefill_chunk=chunk)
    got = greedy_all_at_once(settings, prompts, COUNT, ignore_eos=False)
    for number, (tokens, answer) in enumerate(zip(got, answers, strict=True)):
        answer.check(tokens, f"prompt {number}, chunk {chunk}")


def test_one_by_one(stream: Stream, prompts: list[list[int]], answers: list[Greedy], ids_of: IdsOf) -> None:
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        answer.check(ids_of(ask(stream, prompt, number)), f"prompt {number}")


def test_all_at_once(stream: Stream, prompts: list[list[int]], answers: list[Greedy], ids_of: IdsOf) -> None:
    replies = [ask(stream, prompt, 100 + number) for number, prompt in enumerate(prompts)]
    for number, (reply, answer) in enumerate(zip(replies, answers, strict=True)):
        answer.check(ids_of(reply), f"prompt {number}")


def test_in_random_arrival(stream: Stream, prompts: list[list[int]], answers: list[Greedy], ids_of: IdsOf) -> None:
    rng = random.Random(11)
    order = rng.sample(range(len(prompts)), len(prompts))
    replies = {}
    for number in order:
        replies[number] = ask(stream, prompts[number], 200 + number)
        time.sleep(rng.random() * 0.4)
    for number, reply in replies.items():
        answers[number].check(ids_of(reply), f"prompt {number}")
