"""Counters of the LM on Triton's metrics port. Counting is local; one thread hands the sums over.

A hand-over is a message to the server, too dear for every token.
"""

from __future__ import annotations

import threading
from typing import Any

from triton_mblt.core.events import Output
from triton_mblt.triton_io import wire

_EVERY_S = 1.0
_FAMILIES = {
    "mblt_requests_total": ("Requests that were accepted", "counter"),
    "mblt_failed_requests_total": ("Accepted requests that ended with an error", "counter"),
    "mblt_output_tokens_total": ("Generated tokens", "counter"),
    "mblt_open_requests": ("Requests between acceptance and their last response", "gauge"),
}


class Metrics:
    """Thread-safe. Does nothing on a server without metrics."""

    def __init__(self, model: str) -> None:
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(_FAMILIES, 0)
        self._stop = threading.Event()
        families = {name: wire.metric_family(name, *shape) for name, shape in _FAMILIES.items()}
        self._families = families  # a metric dies with its family
        self._metrics: dict[str, Any] = {
            name: family.Metric(labels={"model": model}) for name, family in families.items() if family is not None
        }
        self._thread = threading.Thread(target=self._run, name="mblt-metrics", daemon=True)
        if self._metrics:
            self._thread.start()

    def opened(self) -> None:
        with self._lock:
            self._sums["mblt_requests_total"] += 1
            self._sums["mblt_open_requests"] += 1

    def saw(self, output: Output) -> None:
        with self._lock:
            self._sums["mblt_output_tokens_total"] += len(output.token_ids)
            self._sums["mblt_open_requests"] -= output.final
            self._sums["mblt_failed_requests_total"] += output.error is not None

    def close(self) -> None:
        self._stop.set()
        if self._metrics:
            self._thread.join()

    def _run(self) -> None:
        handed: dict[str, int] = dict.fromkeys(_FAMILIES, 0)
        while not self._stop.wait(_EVERY_S):
            with self._lock:
                sums = dict(self._sums)
            for name, metric in self._metrics.items():
                if sums[name] == handed[name]:
                    continue
                if _FAMILIES[name][1] == "counter":
                    metric.increment(sums[name] - handed[name])
                else:
                    metric.set(sums[name])
                handed[name] = sums[name]
