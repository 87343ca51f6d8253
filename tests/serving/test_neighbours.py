"""A sampled text belongs to its request and seed: alone or among neighbours with other settings, it is the same."""

from __future__ import annotations

from typing import Any

from triton_calls import Reply, Stream

WATCHED: list[dict[str, Any]] = [
    {"temperature": 0.9, "top_p": 0.9, "seed": 1},
    {"temperature": 1.3, "top_k": 12, "seed": 2, "repetition_penalty": 1.2},
    {"temperature": 0.7, "min_p": 0.05, "seed": 3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
]
NEIGHBOURS = 15
COUNT = 40


def send(stream: Stream, prompt: str, sampling: dict[str, Any]) -> Reply:
    wanted = {"max_tokens": COUNT, "ignore_eos": True, **sampling}
    return stream.send("mblt", text=prompt, sampling=wanted, stream=True)


def test_a_seeded_text_is_the_same_alone_and_among_neighbours(stream: Stream) -> None:
    alone = [send(stream, "the rain in", sampling).wait().text for sampling in WATCHED]
    assert len(set(alone)) == len(alone)
    for watched, expected in zip(WATCHED, alone, strict=True):
        half = [send(stream, f"neighbour {n}", _other(n)) for n in range(8)]
        reply = send(stream, "the rain in", watched)
        rest = [send(stream, f"neighbour {n} says " * n, _other(n)) for n in range(8, NEIGHBOURS)]
        assert reply.wait().text == expected
        assert all(other.wait().error == "" for other in (*half, *rest))


def test_another_seed_gives_another_text(stream: Stream) -> None:
    texts = {send(stream, "the rain in", {"temperature": 1.0, "seed": seed}).wait().text for seed in range(4)}
    assert len(texts) == 4


def test_without_a_seed_texts_differ(stream: Stream) -> None:
    texts = {send(stream, "the rain in", {"temperature": 1.0}).wait().text for _ in range(3)}
    assert len(texts) == 3


def _other(number: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.5, "seed": number},
        {"temperature": 0.4, "top_p": 0.5, "max_tokens": 7},
        {"temperature": 0, "logprobs": 2, "stop": ["e"]},
    ]
    return kinds[number % len(kinds)]
