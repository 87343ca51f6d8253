"""Percentiles, medians and their printing. Knows nothing of servers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed; NaN without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th and 99th percentile."""
    return {"p50": percentile(values, 0.5), "p90": percentile(values, 0.9), "p99": percentile(values, 0.99)}


def medians(runs: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Field by field, the median over runs, nested mappings alike; what is no number comes from the first run."""
    merged: dict[str, object] = {}
    for name, first in runs[0].items():
        values = [run[name] for run in runs if name in run]
        if isinstance(first, Mapping):
            merged[name] = medians([value for value in values if isinstance(value, Mapping)])
        elif isinstance(first, (int, float)) and not isinstance(first, bool):
            merged[name] = statistics.median(value for value in values if isinstance(value, (int, float)))
        else:
            merged[name] = first
    return merged


def table(values: Mapping[str, object], indent: str = "  ") -> str:
    """One line per number, for a person."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = "  ".join(f"{key} {_number(number)}" for key, number in value.items())
            lines.append(f"{indent}{name:<34}{inner}")
        else:
            lines.append(f"{indent}{name:<34}{_number(value)}")
    return "\n".join(lines)


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
