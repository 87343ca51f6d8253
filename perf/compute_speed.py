#!/usr/bin/env python3
"""Speed of compute mode through real Triton: one stream beside transformers' own generate(), eight streams beside one.

transformers runs in a process of its own on the same weights, with as many threads, and never at the same time as a
stream: the two take turns, and medians are compared. Figures are tokens per second after the first token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _load import Load, StreamLog, run
from _server import build_package, demo_weights, environment, serving

WANTED_ONE = 0.8
WANTED_MANY = 2.5
CHILD = Path(__file__).with_name("_reference.py")
PROMPT = "Once upon a time, in a small town by the sea, there lived an old clockmaker"


def rate(logs: Sequence[StreamLog]) -> float:
    """Tokens per second of all streams together, from the moment when all have their first token to the first end."""
    begin, end = max(log.times[0] for log in logs), min(log.times[-1] for log in logs)
    pairs = [pair for log in logs for pair in zip(log.times, log.counts, strict=True)]
    return sum(count for moment, count in pairs if begin < moment <= end) / (end - begin)


class Reference:
    """transformers' generate() in a child process: one line in, one line of tokens/s out."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def rate(self) -> float:
        """Tokens per second after the first token of one greedy answer."""
        self._write("go")
        return float(self._read())

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the reference process ended; its message stands above")
        return line


@contextmanager
def reference(weights: Path, tokens: int, threads: int) -> Iterator[Reference]:
    """A loaded reference for the block."""
    argv = [sys.executable, str(CHILD), str(weights), "--tokens", str(tokens), "--threads", str(threads)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        made = Reference(process)
        made.rate()  # loads, and warms up
        yield made
    finally:
        process.kill()
        process.wait()


def measure(given: argparse.Namespace, weights: Path, package: Path) -> dict[str, Any]:
    """All rounds; each has the reference, one stream and many streams, one after the other."""
    sampling = {"temperature": 0, "max_tokens": given.tokens, "ignore_eos": True}
    found: dict[str, list[float]] = {"transformers": [], "one": [], "many": []}
    env = {"MBLT_EMULATOR_MODE": "compute", "OMP_NUM_THREADS": str(given.threads)}
    with reference(weights, given.tokens, given.threads) as other, serving(package, env) as server:

        def streams(count: int) -> float:
            prompts = [f"{number} {PROMPT}" for number in range(count)]
            return rate(run(Load(server.grpc, given.model, prompts, sampling, given.model != "mblt")))

        streams(1)
        for _ in range(given.runs):
            found["transformers"].append(other.rate())
            found["one"].append(streams(1))
            found["many"].append(streams(given.streams))
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {
        "tokens_per_s": middle,
        "one_to_transformers": middle["one"] / middle["transformers"],
        "many_to_one": middle["many"] / middle["one"],
        "runs": found,
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, help="checkpoint folder or GGUF file (default: the demo's weights)")
    parser.add_argument("--streams", type=int, default=8, help="streams together, and slots (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="rounds (default %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads of both sides")
    parser.add_argument("--model", default="mblt_ensemble", help="mblt_ensemble or mblt")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    given = options()
    weights = given.weights or demo_weights()
    result = measure(given, weights, build_package(weights, given.streams, 2048))
    good = result["one_to_transformers"] >= WANTED_ONE and result["many_to_one"] >= WANTED_MANY
    if given.json:
        print(json.dumps(result, indent=2))
        return 0 if good else 1
    rates = result["tokens_per_s"]
    print(f"tokens/s, medians of {given.runs} rounds, {given.threads} threads")
    lines = {
        "transformers generate()": (rates["transformers"], ""),
        "one stream": (rates["one"], f"{result['one_to_transformers']:.2f} of it, {WANTED_ONE} wanted"),
        f"{given.streams} streams": (rates["many"], f"{result['many_to_one']:.2f} times one, {WANTED_MANY} wanted"),
    }
    for name, (value, note) in lines.items():
        print(f"  {name:<26}{value:8.1f}   {note}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
