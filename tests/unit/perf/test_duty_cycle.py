"""The arithmetic of the duty cycle, on calls and streams written down by hand."""

from __future__ import annotations

import math

import pytest

from _figures import medians, percentile
from _load import StreamLog
from duty_cycle import CASES, Call, calls_since, client_figures, device_figures, verdict

MS = 1e-3


def decode(start_ms: float, took_ms: float = 20.0, rows: int = 4) -> Call:
    return Call(start_ms * MS, (start_ms + took_ms) * MS, 20 * MS, rows, rows)


def prefill(start_ms: float, took_ms: float) -> Call:
    return Call(start_ms * MS, (start_ms + took_ms) * MS, took_ms * MS, 4, 40)


def test_a_device_that_never_waits_has_the_whole_share() -> None:
    figures = device_figures([decode(0), decode(20), decode(40)], 4, 20 * MS)
    assert figures["share_at_device"] == pytest.approx(1.0)
    assert figures["gap_ms"]["p50"] == pytest.approx(0.0, abs=1e-9)


def test_gaps_after_decode_calls_and_missing_rows_cost_share() -> None:
    # 4 + 2 rows in 25 ms + 20 ms, against 4 rows in 20 ms.
    figures = device_figures([decode(0), decode(25, rows=2)], 4, 20 * MS)
    assert figures["share_at_device"] == pytest.approx(6 / 45 * 20 / 4)
    assert figures["rows_per_decode_call"] == 3
    assert figures["gap_ms"]["p99"] == pytest.approx(5.0)


def test_prefill_calls_are_counted_apart() -> None:
    figures = device_figures([prefill(0, 100), decode(130), decode(150)], 4, 20 * MS)
    assert (figures["prefill_calls"], figures["decode_calls"]) == (1, 2)
    assert figures["share_at_device"] == pytest.approx(1.0), "the time before the first decode call is not its own"


def test_deviation_is_the_median_distance_to_both_sides() -> None:
    figures = device_figures([decode(0, 19.0), decode(20, 20.2), decode(41, 21.0)], 4, 20 * MS)
    assert figures["call_deviation_ms"] == pytest.approx(1.0)


def test_no_decode_calls_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="latency mode"):
        device_figures([prefill(0, 100)], 4, 20 * MS)


def test_clients_count_only_while_all_streams_run() -> None:
    first = StreamLog(0.0, times=[1.0, 2.0, 3.0, 4.0], counts=[1, 1, 1, 1])
    late = StreamLog(0.0, times=[2.0, 3.0, 4.0, 5.0], counts=[1, 1, 1, 1])
    figures = client_figures([first, late], 2, 1.0)
    assert figures["tokens_per_s"] == pytest.approx(4 / 2)
    assert figures["share_at_clients"] == pytest.approx(1.0)
    assert figures["ttft_ms"]["p99"] == pytest.approx(2000)


def test_a_response_of_several_tokens_counts_once_for_each() -> None:
    log = StreamLog(0.0, times=[1.0, 2.0], counts=[1, 2])
    assert log.gaps() == [0.5, 0.5]
    assert log.tokens == 3


def test_calls_come_in_order_and_only_those_of_the_run() -> None:
    raw = [
        {"start_ns": n * 10**9, "end_ns": n * 10**9 + 5, "nominal_ms": 20.0, "rows": 1, "tokens": 1} for n in (3, 1, 2)
    ]
    assert [call.start for call in calls_since([{"latest": raw}], 2.0)] == [2.0, 3.0]


def test_the_worse_of_both_shares_decides() -> None:
    figures = {
        "share_at_clients": 0.96,
        "share_at_device": 0.94,
        "rows_per_decode_call": 15.7,
        "call_deviation_ms": 0.1,
    }
    assert list(verdict(figures, CASES["20"], 16).values()) == [False, True, True]


def test_percentile_and_medians() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.99) == 4.0
    assert math.isnan(percentile([], 0.5))
    runs = [
        {"a": 1.0, "b": {"c": 5}, "d": "x"},
        {"a": 3.0, "b": {"c": 7}, "d": "x"},
        {"a": 9.0, "b": {"c": 6}, "d": "x"},
    ]
    assert medians(runs) == {"a": 3.0, "b": {"c": 6}, "d": "x"}
