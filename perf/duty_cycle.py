#!/usr/bin/env python3
"""How much of the NPU's time reaches the clients: 16 greedy streams through mblt_ensemble on a timed emulated NPU.

Starts a server per latency profile, reads the emulator's counters from outside, prints medians over several runs.
Decode calls are device calls whose rows have one token each; the rest is prefill.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from _figures import medians, percentile, spread, table
from _load import Load, StreamLog, run
from _server import Server, build_package, demo_weights, serving

WANTED_ROWS = 0.98
WANTED_DEVIATION_MS = 0.3


@dataclass(frozen=True)
class Case:
    """A latency profile, the nominal time of its decode call, and the share of rows / nominal time that is wanted."""

    profile: str
    nominal_ms: float
    wanted: float


CASES = {"20": Case("seed", 20.0, 0.95), "5": Case("seed-5ms", 5.0, 0.85)}


@dataclass(frozen=True)
class Call:
    """One device call as the emulator recorded it; times in seconds."""

    start: float
    end: float
    nominal: float
    rows: int
    tokens: int

    @property
    def decode(self) -> bool:
        return self.rows == self.tokens


def calls_since(stats: Any, moment: float) -> list[Call]:
    """The calls that began after `moment` (monotonic clock), from the output of `triton-mblt emulate stats`."""
    found = [
        Call(one["start_ns"] / 1e9, one["end_ns"] / 1e9, one["nominal_ms"] / 1e3, one["rows"], one["tokens"])
        for process in stats
        for one in process["latest"]
    ]
    return sorted((call for call in found if call.start >= moment), key=lambda call: call.start)


def device_figures(calls: Sequence[Call], slots: int, nominal_s: float) -> dict[str, Any]:
    """What the device saw. The time between two calls counts when both are decode calls."""
    decode = [call for call in calls if call.decode]
    if len(decode) < 2:
        raise RuntimeError(f"{len(decode)} decode calls recorded: is the server's NPU in latency mode?")
    gaps = [(after.start - before.end) * 1e3 for before, after in pairwise(calls) if before.decode and after.decode]
    busy = sum(after.start - before.start for before, after in pairwise(calls) if before.decode)
    busy += calls[-1].end - calls[-1].start if calls[-1].decode else 0.0
    rows = sum(call.rows for call in decode)
    return {
        "share_at_device": rows / busy / (slots / nominal_s),
        "rows_per_decode_call": rows / len(decode),
        "decode_calls": len(decode),
        "prefill_calls": len(calls) - len(decode),
        "call_deviation_ms": statistics.median(abs(call.end - call.start - call.nominal) * 1e3 for call in decode),
        "gap_ms": {"p50": percentile(gaps, 0.5), "p99": percentile(gaps, 0.99)},
    }


def client_figures(logs: Sequence[StreamLog], slots: int, nominal_s: float) -> dict[str, Any]:
    """What the clients saw. The rate is over the time in which every stream was between its first and last token."""
    begin, end = max(log.times[0] for log in logs), min(log.times[-1] for log in logs)
    if end <= begin:
        raise RuntimeError("the streams never ran side by side: more tokens are needed")
    seen = sum(
        count for log in logs for moment, count in zip(log.times, log.counts, strict=True) if begin < moment <= end
    )
    rate = seen / (end - begin)
    return {
        "share_at_clients": rate / (slots / nominal_s),
        "tokens_per_s": rate,
        "tokens": sum(log.tokens for log in logs),
        "ttft_ms": spread([log.ttft() * 1e3 for log in logs]),
        "itl_ms": spread([gap * 1e3 for log in logs for gap in log.gaps()]),
    }


def measure(server: Server, load: Load, case: Case) -> dict[str, Any]:
    """One run: all streams at once."""
    slots = len(load.prompts)
    cpu_before, begin = server.cpu_seconds(), time.monotonic()
    logs = run(load)
    seconds, cpu_after = time.monotonic() - begin, server.cpu_seconds()
    calls = calls_since(server.emulator_stats(), begin)
    used = {name: 100 * (now - cpu_before.get(name, 0.0)) / seconds for name, now in cpu_after.items()}
    figures = client_figures(logs, slots, case.nominal_ms / 1e3) | device_figures(calls, slots, case.nominal_ms / 1e3)
    return figures | {"cpu_percent": {name: value for name, value in used.items() if value >= 0.5}}


def verdict(figures: Mapping[str, Any], case: Case, slots: int) -> dict[str, bool]:
    """Which of the targets these figures reach."""
    return {
        f"share >= {case.wanted}": min(figures["share_at_clients"], figures["share_at_device"]) >= case.wanted,
        f"rows >= {WANTED_ROWS} of {slots}": figures["rows_per_decode_call"] >= WANTED_ROWS * slots,
        f"call within {WANTED_DEVIATION_MS} ms": figures["call_deviation_ms"] <= WANTED_DEVIATION_MS,
    }


def prompts(count: int, run_number: int) -> list[str]:
    """Prompts of the same length that differ from the first token on, between runs too: every slot starts cold."""
    return [
        f"{number:02d}{run_number:02d} is the number of a story that begins on a cold day" for number in range(count)
    ]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--decode-ms", choices=sorted(CASES), nargs="*", default=["20", "5"], help="nominal call times")
    parser.add_argument("--streams", type=int, default=16, help="streams, and slots of the package (default 16)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each answer (default 200)")
    parser.add_argument(
        "--runs", type=int, default=5, help="measured runs per profile, after one to warm up (default 5)"
    )
    parser.add_argument("--model", default="mblt_ensemble", help="mblt_ensemble or mblt")
    parser.add_argument("--logits", choices=("recorded", "flat"), default="recorded", help="what the emulator plays")
    parser.add_argument(
        "--package", type=Path, help="package with as many slots (default: built from the demo's weights)"
    )
    parser.add_argument(
        "--fair", action="store_true", help="do not put the engine's thread first (worker_realtime needs CAP_SYS_NICE)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    given = options()
    package = given.package or build_package(demo_weights(), given.streams, 2048)
    sampling = {"temperature": 0, "max_tokens": given.tokens, "ignore_eos": True}
    results: dict[str, Any] = {}
    for name in given.decode_ms:
        case = CASES[name]
        env = {"MBLT_EMULATOR_MODE": "latency", "MBLT_EMULATOR_PROFILE": case.profile}
        env |= {"MBLT_WORKER_REALTIME": "false" if given.fair else "true"}
        with serving(package, env | {"MBLT_EMULATOR_LOGITS": given.logits}) as server:
            loads = [
                Load(server.grpc, given.model, prompts(given.streams, number), sampling, given.model != "mblt")
                for number in range(given.runs + 1)
            ]
            runs = [measure(server, load, case) for load in loads][1:]
        figures = medians(runs)
        targets = verdict(figures, case, given.streams)
        results[f"{name} ms"] = {"median": figures, "targets": targets, "runs": runs}
        if not given.json:
            print(
                f"decode call {name} ms, {given.streams} streams of {given.tokens} tokens, median of {given.runs} runs"
            )
            print(table(figures))
            print(table({what: "reached" if good else "MISSED" for what, good in targets.items()}))
    if given.json:
        print(json.dumps(results, indent=2))
    return 0 if all(all(result["targets"].values()) for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
