"""Random orders of everything that can end a request: each gets one final output, and the right tokens before it."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress

from fake_engine import answer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from lm_service import Collector, request, running

from triton_mblt.core.errors import WorkerRestarting
from triton_mblt.core.request import GenerateRequest, SequenceKey

FOREVER = 10**6


class EndingsMachine(RuleBasedStateMachine):
    """`asked` holds every accepted request with its collector; rules pick one by an index that wraps around."""

    @initialize(wait=st.booleans(), count=st.integers(0, 10))
    def start(self, wait: bool, count: int) -> None:
        self.stack = ExitStack()
        self.service = self.stack.enter_context(running(wait=wait))
        self.asked: list[tuple[GenerateRequest, Collector]] = []
        self.kills_left = 2
        self.closed = False
        for _ in range(count):
            self.submit_one(10, FOREVER, 0.0)

    @rule(first=st.integers(10, 900), max_tokens=st.sampled_from([1, 3, 20, FOREVER]), leased=st.booleans())
    def submit(self, first: int, max_tokens: int, leased: bool) -> None:
        self.submit_one(first, max_tokens, 0.02 if leased else 0.0)

    def submit_one(self, first: int, max_tokens: int, lease_s: float) -> None:
        wanted = request(self.service, [first], max_tokens=max_tokens, key=len(self.asked) + 1)
        collector = Collector()
        try:
            self.service.submit(wanted, collector, abort_token="t", lease_s=lease_s)
        except WorkerRestarting:
            assert self.closed
            assert collector.outputs == []
        else:
            assert not self.closed
            self.asked.append((wanted, collector))

    @rule(index=st.integers(0, 100))
    def cancel(self, index: int) -> None:
        if self.asked:
            self.service.cancel(self.asked[index % len(self.asked)][0].handle, "cancelled")

    @rule(index=st.integers(0, 100))
    def abort(self, index: int) -> None:
        if self.asked:
            self.service.abort(SequenceKey.of(index % len(self.asked) + 1), "r", "t")

    @rule(index=st.integers(0, 100))
    def wait_for_some(self, index: int) -> None:
        if self.asked:
            self.asked[index % len(self.asked)][1].wait_some()

    @precondition(lambda self: len(self.asked) >= 4 and self.kills_left > 0 and not self.closed)
    @rule()
    def kill(self) -> None:
        self.kills_left -= 1
        pid = self.service.stats(timeout_s=0.05)["workers"][0]["pid"]
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @precondition(lambda self: len(self.asked) >= 8)
    @rule()
    def close(self) -> None:
        self.service.close()
        self.closed = True
        assert all(collector.finals == 1 for _, collector in self.asked)

    def teardown(self) -> None:
        if not hasattr(self, "service"):
            return
        try:
            for wanted, _ in self.asked:
                if wanted.sampling.max_tokens == FOREVER:
                    self.service.cancel(wanted.handle, "the test is over")
            for wanted, collector in self.asked:
                final = collector.wait_final()
                first = int(wanted.prompt_ids()[0])
                assert collector.tokens == answer([first], len(collector.tokens))
                assert (final.error is None) == (len(collector.tokens) == wanted.sampling.max_tokens)
            assert self.service.stats(timeout_s=0.05)["open_requests"] == 0
        finally:
            self.stack.close()
        assert all(collector.outputs[-1].final and collector.finals == 1 for _, collector in self.asked)


TestEndings = EndingsMachine.TestCase
TestEndings.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
