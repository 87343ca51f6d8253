"""A model on its (emulated) device: the one place where calls run, one at a time, take their time and are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import _fault_effects as effects
from ._artefact import Artefact, ArtefactError
from ._bank import make_bank
from ._errors import failure
from ._faults import Fault, board
from ._kernel import Kernel, Row
from ._latency import LatencyKernel
from ._options import options
from ._pace import wait_until
from ._profile import load_profile
from ._stats import stats
from ._trace import span

Logits = npt.NDArray[np.float32]
_RESERVE = 1.3  # on top of the usual time, since a late result cannot be waited away


class Launched:
    """Owns the kernel and the lock of one launched model."""

    def __init__(self, artefact: Artefact) -> None:
        """Load the kernel that the options ask for. Errors: Model_BrokenMXQ; OptionError for senseless options."""
        self.artefact = artefact
        self.cache_lock = threading.RLock()
        self._free_ns = 0  # when the device finished its last call
        self._computes = options().computes
        self._row_ns = 20_000.0  # what the kernel needs per row, as seen lately
        self._profile = load_profile(options().profile) if options().paces else None
        self._stats = stats(options().run_dir)
        self._board = board()
        try:
            self._kernel = _make_kernel(artefact)
        except ArtefactError as error:
            raise failure("Model_BrokenMXQ", str(error)) from error

    def call(self, begin_ns: int, tokens: Logits, rows: Sequence[Row]) -> Logits:
        """Run one checked call that its caller began at `begin_ns`. tokens: [T, H]. Returns logits [lines, V]."""
        with span("lock core"):
            self.cache_lock.acquire()
        try:
            start = max(begin_ns, self._free_ns)
            faults = self._board.next_call()
            nominal = self._profile.call_ns(rows) if self._profile is not None else 0
            try:
                effects.strike(faults)
                with span("run npu"):
                    late = nominal > 0 and not self._computes
                    if late:
                        nominal = effects.slowed(faults, nominal, 0)
                        self._wait_for_results(start + nominal, len(rows))
                    logits = self._forward(tokens, rows, faults)
            except Exception:
                self._stats.add(failed=1)
                raise
            if not late:
                nominal = effects.slowed(faults, nominal, time.monotonic_ns() - start)
            with span("wait core"):
                wait_until(start + nominal)
            self._free_ns = end = time.monotonic_ns()
            self._stats.called(start, end, nominal, rows, len(tokens))
            return logits
        finally:
            with span("unlock core"):
                self.cache_lock.release()

    def _wait_for_results(self, deadline_ns: int, row_count: int) -> None:
        """In latency mode logits are written at the end of the call, as a device's are, so the host finds them in its
        caches."""
        wait_until(deadline_ns - int(self._row_ns * row_count * _RESERVE))

    def refuse(self) -> None:
        """Count a call that a check turned away."""
        self._stats.add(refused=1)

    def dump(self, cache_id: int) -> list[bytes]:
        """The whole slot, one blob per cache."""
        with self.cache_lock, span("read device"):
            begin = time.monotonic_ns()
            blobs = self._kernel.dump(cache_id)
            if self._board.next_dump():
                blobs = effects.damaged(blobs)
            if self._profile is not None:
                wait_until(begin + self._profile.dump_ns)
            self._stats.add(dumps=1)
            return blobs

    def load(self, cache_id: int, blobs: list[bytes]) -> None:
        """Overwrite the whole slot with checked blobs."""
        with self.cache_lock, span("write device"):
            begin = time.monotonic_ns()
            self._kernel.load(cache_id, blobs)
            if self._profile is not None:
                wait_until(begin + self._profile.load_ns)
            self._stats.add(loads=1)

    def _forward(self, tokens: Logits, rows: Sequence[Row], faults: Sequence[Fault]) -> Logits:
        slots = {row.cache_id for row in rows} if effects.drops(faults) else ()
        before = {cache_id: self._kernel.dump(cache_id) for cache_id in slots}
        began = time.monotonic_ns()
        try:
            logits = self._kernel.forward([tokens], rows)
        except MemoryError as error:
            raise failure("BadAlloc", str(error)) from error
        except RuntimeError as error:
            raise failure("Model_PredictError", str(error)) from error
        self._row_ns += (float(time.monotonic_ns() - began) / len(rows) - self._row_ns) * 0.2
        for cache_id, blobs in before.items():
            self._kernel.load(cache_id, blobs)
        return effects.rewrite(faults, logits, rows, self.artefact.logits == "all")


def _make_kernel(artefact: Artefact) -> Kernel:
    if options().computes:
        from ._compute import ComputeKernel  # brings torch, which latency mode does without

        return ComputeKernel(artefact)
    return LatencyKernel(artefact, make_bank(options().logits, artefact.vocab))
