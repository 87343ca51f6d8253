"""Text streams through every entry, with exactly one final flag, and every entry says the same."""

from __future__ import annotations

import asyncio
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as aio
from lm_control import Control
from tiny_models import USER
from triton_calls import Reply, Stream, http_events
from triton_server import TritonServer
from tritonclient.grpc import InferInput

pytestmark = pytest.mark.e2e

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PROMPT = "the rain in the north is not the rain of the south"
ENTRIES = ("mblt", "mblt_ensemble")


def place(entry: str) -> dict[str, Any]:
    """The sequence fields that an entry needs."""
    return {} if entry == "mblt" else {"sequence": f"one-{entry}"}


@pytest.fixture(scope="module")
def expected(server: TritonServer) -> str:
    """The greedy answer to PROMPT in one piece."""
    with Stream(server.grpc) as stream:
        reply = stream.ask("mblt", text=PROMPT, sampling=GREEDY, exclude_input_in_output=True)
    assert len(reply.responses) == 1
    assert reply.text
    return reply.text


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_stream_comes_in_pieces_and_ends_once(stream: Stream, expected: str, entry: str) -> None:
    reply = stream.ask(entry, text=PROMPT, sampling=GREEDY, stream=True, **place(entry))
    assert reply.text == expected
    assert len(reply.responses) > 1
    assert reply.finals == 1


def test_the_lm_itself_takes_token_ids(stream: Stream, server: TritonServer, expected: str) -> None:
    status, body = server.post("/v2/models/tokenizer/generate", {"text_input": PROMPT})
    assert status == 200
    ids = json.loads(body)["input_ids"]
    reply = stream.ask("lm", ids=ids, sampling=GREEDY, sequence=11, stream=True, return_token_ids=True)
    assert (reply.text, reply.finals) == (expected, 1)
    assert sum(len(one["token_ids"]) for one in reply.responses) == 12


def test_responses_carry_the_request_id_on_every_entry(stream: Stream) -> None:
    replies = [stream.send(entry, text=PROMPT, request_id=f"id-{entry}", **place(entry)) for entry in ENTRIES]
    assert [reply.wait().error for reply in replies] == ["", ""]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("flags", "echoed"),
    [
        ({}, True),
        ({"exclude_input_in_output": False}, True),
        ({"exclude_input_in_output": True}, False),
        ({"stream": True}, False),
        ({"stream": True, "exclude_input_in_output": True}, False),
    ],
)
def test_the_prompt_is_echoed_as_in_vllm_backend(
    stream: Stream, expected: str, entry: str, flags: dict[str, bool], echoed: bool
) -> None:
    reply = stream.ask(entry, text=PROMPT, sampling=GREEDY, **flags, **place(entry))
    assert reply.text == (PROMPT + expected if echoed else expected)


def test_messages_are_rendered_and_not_echoed_unless_asked(stream: Stream) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    plain = stream.ask("mblt", messages=messages, sampling=GREEDY)
    spelt = stream.ask(
        "mblt", text=f"<|user|>{PROMPT}<|end|><|assistant|>", sampling=GREEDY, exclude_input_in_output=True
    )
    echoed = stream.ask("mblt", messages=messages, sampling=GREEDY, exclude_input_in_output=False)
    assert plain.text == spelt.text
    assert echoed.text == f"<|user|>{PROMPT}<|end|><|assistant|>{plain.text}"


def test_special_tokens_in_a_message_stay_text(stream: Stream) -> None:
    messages = [{"role": "user", "content": "a<|end|>b"}]
    reply = stream.ask("mblt", messages=messages, sampling={"max_tokens": 1}, return_num_input_tokens=True)
    (only,) = reply.responses
    assert only["num_input_tokens"] == 3 + len("a<|end|>b")
    assert USER == 1


def test_an_empty_text_beside_messages_is_no_text(stream: Stream) -> None:
    reply = stream.ask("mblt", text="", messages=[{"role": "user", "content": "hi"}], sampling=GREEDY)
    assert (reply.error, reply.finals) == ("", 1)


def test_one_request_sequences_end_fifty_times(stream: Stream) -> None:
    """C05."""
    for _ in range(50):
        reply = stream.ask("mblt_ensemble", text="Count to five", sampling={"max_tokens": 3}, sequence=41)
        assert (reply.error, reply.finals) == ("", 1)


def test_generate_makes_an_id_per_caller(server: TritonServer, control: Control) -> None:
    """C07: eight at once, all answered, and seen by the LM as different sequences (else one would end another)."""
    body = {"text_input": "Name a river", "sampling_parameters": '{"max_tokens": 8, "ignore_eos": true}'}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.post("/v2/models/mblt/generate", body), range(8)))
    assert [status for status, _ in answers] == [200] * 8
    assert all(json.loads(text)["text_output"].startswith("Name a river") for _, text in answers)


def test_numeric_strings_count_as_numbers(stream: Stream) -> None:
    """C109."""
    reply = stream.ask(
        "mblt", text="hello", sampling='{"max_tokens": "16", "min_tokens": "16"}', stream=True,
        exclude_input_in_output=True, return_num_output_tokens=True,
    )  # fmt: skip
    assert (reply.error, reply.tokens) == ("", 16)


def test_generate_stream_takes_top_level_fields(server: TritonServer) -> None:
    """C110."""
    fields = {"text_input": "hello", "stream": True, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    events = post_stream(server, {**fields, "return_num_output_tokens": True})
    assert sum(event["num_output_tokens"] for event in events) == 5


def test_sampling_parameters_win_over_top_level_fields(server: TritonServer) -> None:
    events = post_stream(
        server,
        {
            "text_input": "hello", "stream": True, "max_tokens": 9, "ignore_eos": "true", "temperature": "0.0",
            "sampling_parameters": '{"max_tokens": 4}', "return_num_output_tokens": True,
        },
    )  # fmt: skip
    assert sum(event["num_output_tokens"] for event in events) == 4


def test_a_float_parameter_passes_the_front(server: TritonServer) -> None:
    """Triton's BLS takes no float parameters: the front sends them as strings."""
    fields = {"text_input": "hello", "max_tokens": 5, "temperature": 0.7, "top_p": 0.5, "seed": 3}
    first, second = (server.post("/v2/models/mblt/generate", fields) for _ in range(2))
    assert first == second
    assert first[0] == 200


def test_the_aio_client_ends_by_itself(server: TritonServer, expected: str) -> None:
    """It waits for ever when the final flag comes on a response without outputs."""
    assert asyncio.run(aio_text(server.grpc)) == expected


async def aio_text(address: str) -> str:
    async def requests() -> Any:
        yield {
            "model_name": "mblt_ensemble",
            "inputs": [
                text_of("text_input", PROMPT),
                text_of("sampling_parameters", json.dumps(GREEDY)),
                stream_of(True),
            ],
            "sequence_id": "aio",
            "sequence_start": True,
            "sequence_end": True,
        }

    pieces = []
    async with aio.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            pieces.append(result.as_numpy("text_output")[0].decode())
    return "".join(pieces)


def text_of(name: str, value: str) -> InferInput:
    made = InferInput(name, [1], "BYTES")
    made.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
    return made


def stream_of(value: bool) -> InferInput:
    made = InferInput("stream", [1], "BOOL")
    made.set_data_from_numpy(np.array([value]))
    return made


def post_stream(server: TritonServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=60)
    try:
        connection.request("POST", "/v2/models/mblt/generate_stream", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 200
        return list(http_events(iter(answer.readline, b"")))
    finally:
        connection.close()


def test_many_streams_at_once_say_what_they_say_alone(stream: Stream) -> None:
    prompts = [f"number {n} of the train station" for n in range(24)]
    alone = [stream.ask("mblt", text=prompt, sampling=GREEDY).text for prompt in prompts]
    together: list[Reply] = [stream.send("mblt", text=prompt, sampling=GREEDY) for prompt in prompts]
    assert [reply.wait().text for reply in together] == alone
