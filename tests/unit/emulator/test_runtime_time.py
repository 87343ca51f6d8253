"""Latency profiles, pacing and tracing of the emulated runtime. (How close pacing is, is measured, not tested.)"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twin import artefact, configure, forget, run

from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime._kernel import Row
from triton_mblt.emulator.site.qbruntime._options import OptionError
from triton_mblt.emulator.site.qbruntime._profile import BUILT_IN, load_profile, parse_profile
from triton_mblt.emulator.stats import read_stats

ROWS = st.lists(st.builds(Row, st.integers(1, 300), st.integers(0, 9), st.integers(0, 31)), min_size=1, max_size=8)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run")
    yield
    forget()


def ms(name: str, *rows: tuple[int, int]) -> float:
    """Nominal milliseconds of a call with rows (length, cache_id)."""
    return load_profile(name).call_ns([Row(length, 0, slot) for length, slot in rows]) / 1e6


def test_seed_costs_chunks_and_one_decode() -> None:
    assert ms("seed", (1, 0)) == ms("seed", *((1, slot) for slot in range(16))) == 20
    assert ms("seed", (2, 0)) == ms("seed", (128, 0)) == 60
    assert ms("seed", (129, 0), (128, 1)) == 180
    assert ms("seed", (200, 0), (1, 1), (1, 2)) == 140
    assert ms("seed-5ms", (128, 0), (1, 1)) == 65
    assert ms("seed-0ms", (128, 0), (1, 1)) == 0


def test_linear_runs_rows_side_by_side() -> None:
    assert ms("linear", (100, 0)) == 50
    assert ms("linear", (100, 0), (1, 1)) == 50
    assert ms("linear", (100, 0), (1, 8)) == 70, "slots 0 and 8 share a core"
    assert ms("linear", *((1, slot) for slot in range(8))) == 20


@given(rows=ROWS, more=ROWS)
def test_more_rows_never_cost_less(rows: list[Row], more: list[Row]) -> None:
    for name in ("seed", "linear"):
        profile = load_profile(name)
        assert profile.call_ns([*rows, *more]) >= profile.call_ns(rows)


def test_every_built_in_profile_loads() -> None:
    names = {path.stem for path in BUILT_IN.glob("*.json")}
    assert names >= {"seed", "seed-5ms", "seed-0ms", "linear"}
    for name in names:
        load_profile(name)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ([], "kind"),
        ({"kind": "round"}, "kind"),
        ({"kind": "linear", "prefill_ms_per_token": 1, "decode_ms_per_token": 1}, "cores"),
        ({"kind": "linear", "prefill_ms_per_token": "1", "decode_ms_per_token": 1, "cores": 1}, "prefill_ms_per_token"),
        ({"kind": "linear", "prefill_ms_per_token": -1, "decode_ms_per_token": 1, "cores": 1}, "prefill_ms_per_token"),
        ({"kind": "linear", "prefill_ms_per_token": 1, "decode_ms_per_token": 1, "cores": 1, "x": 1}, "x"),
    ],
)
def test_a_senseless_profile_is_refused(raw: Any, word: str) -> None:
    with pytest.raises(OptionError, match=word):
        parse_profile(raw, "mine")


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match="seed-5ms"):
        load_profile("nothing")


def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **values: float) -> q.Model:
    path = tmp_path / "profile.json"
    times = {"chunk_tokens": 128, "prefill_ms_per_chunk": 40, "decode_ms_per_call": 15, **values}
    path.write_text(json.dumps({"kind": "chunked", **times}))
    configure(monkeypatch, tmp_path / "run", PROFILE=str(path))
    return q.load(artefact(tmp_path, batch=4))


def test_calls_last_at_least_their_nominal_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = profile(monkeypatch, tmp_path, dump_ms=10, load_ms=20)
    for row, least in ((([1, 2], 0, 0), 0.040), (([1], 2, 0), 0.015)):
        begin = time.monotonic()
        run(model, row)
        assert time.monotonic() - begin >= least
    begin = time.monotonic()
    model.load_cache_memory(model.dump_cache_memory(0), 1)
    assert time.monotonic() - begin >= 0.030
    (stats,) = read_stats(os.getpid())
    assert [call["nominal_ms"] for call in stats["latest"]] == [40, 15]


def test_calls_on_one_model_queue_and_others_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = profile(monkeypatch, tmp_path, decode_ms_per_call=100)
    second = q.load(artefact(tmp_path, batch=4))
    targets = (first, first, second)
    threads = [threading.Thread(target=run, args=(model, ([1], 0, n))) for n, model in enumerate(targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (stats,) = read_stats(os.getpid())
    spans = {call["cache_ids"][0]: (call["start_ns"], call["end_ns"]) for call in stats["latest"]}
    same = sorted([spans[0], spans[1]])
    assert same[0][1] <= same[1][0], "two calls on one model overlap"
    assert spans[2][0] < same[0][1], "a call on another model waited"


def traced(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_tracing_writes_pairs_with_the_runtime_s_names(tmp_path: Path) -> None:
    model, path = q.load(artefact(tmp_path, batch=4)), tmp_path / "trace.json"
    run(model, ([1], 0, 0))
    assert q.start_tracing_events(str(path)) is True
    assert q.start_tracing_events(str(tmp_path / "second.json")) is True
    run(model, ([1], 1, 0))
    model.load_cache_memory(model.dump_cache_memory(0), 1)
    assert path.read_text() == ""
    q.stop_tracing_events()
    q.stop_tracing_events()
    events = traced(path)
    assert not (tmp_path / "second.json").exists()
    opened: list[str] = []
    for event in events:
        assert set(event) == {"name", "ph", "pid", "tid", "ts"}
        if event["ph"] == "B":
            opened.append(event["name"])
        else:
            assert event["ph"] == "E"
            assert opened.pop() == event["name"]
    assert opened == []
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    names = [event["name"] for event in events if event["ph"] == "B"]
    expected = ["infer", "convert to buffer", "lock core", "run npu", "wait core", "unlock core", "convert from buffer"]
    assert names == [*expected, "read device", "write device"]
    run(model, ([1], 2, 0))
    assert len(traced(path)) == len(events)


def test_tracing_ends_spans_of_calls_that_fail(tmp_path: Path) -> None:
    model, path = q.load(artefact(tmp_path, batch=4)), tmp_path / "trace.json"
    q.start_tracing_events(str(path))
    with pytest.raises(q.QbRuntimeError):
        run(model, ([1], 0, 7))
    q.stop_tracing_events()
    phases = [(event["name"], event["ph"]) for event in traced(path)]
    assert phases == [("infer", "B"), ("convert to buffer", "B"), ("convert to buffer", "E"), ("infer", "E")]


def test_tracing_nowhere_is_false(tmp_path: Path) -> None:
    assert q.start_tracing_events(str(tmp_path / "missing" / "trace.json")) is False
    q.stop_tracing_events()
