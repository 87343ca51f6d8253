"""Random life of an engine on the hand-computable device: a text that ends well is the cold solo text."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from engine_bench import VOCAB, Bench
from fake_npu import chain, solo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiny_tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(Path(tempfile.mkdtemp()))
MAX_CACHE = 48
KEYS = [1, 2, "1", "a", 5]


class EngineMachine(RuleBasedStateMachine):
    """Sequences that share beginnings, on few slots. `texts` is each sequence's conversation so far."""

    slots = 2
    logits = "last"

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(TOKENIZER, slots=self.slots, max_cache=MAX_CACHE, row_limit=8, logits=self.logits)
        self.asked: dict[int, tuple[list[int], int]] = {}
        self.texts: dict[Any, list[int]] = {}
        self.faults = False

    @rule(
        key=st.sampled_from(KEYS),
        start=st.booleans(),
        more=st.lists(st.integers(3, 5), min_size=1, max_size=12),
        keep=st.integers(0, MAX_CACHE),
        count=st.integers(1, 12),
        stream=st.booleans(),
        salt=st.sampled_from(["", "a"]),
    )
    def ask(self, key: Any, start: bool, more: list[int], keep: int, count: int, stream: bool, salt: str) -> None:
        """A new conversation, the next turn, or one with an edited middle (`keep` tokens of what was said)."""
        before = [] if start else self.texts.get(key, [])[:keep]
        prompt = [*before, *more][: MAX_CACHE - 12]
        handle = self.bench.submit(prompt, key=key, start=start, stream=stream, salt=salt, max_tokens=count)
        self.asked[handle] = (prompt, count)
        self.texts[key] = [*prompt, *solo(prompt, count, VOCAB)]

    @rule(count=st.integers(1, 8))
    def work(self, count: int) -> None:
        for _ in range(count):
            if self.bench.engine.has_work():
                self.bench.step()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 1000))
    def abort(self, which: int) -> None:
        self.bench.engine.abort(sorted(self.asked)[which % len(self.asked)], "client left")

    @rule()
    def break_the_next_call(self) -> None:
        self.bench.npu.fail_at.add(len(self.bench.npu.calls))

    @precondition(lambda self: self.bench.engine._turns)
    @rule(lost=st.integers(1, 20))
    def lose_tokens(self, lost: int) -> None:
        """The device forgets, and the table is told: rows that claim more must be rebuilt."""
        for turn in self.bench.engine._turns.values():
            if turn.slot is not None:
                turn.slot.held = max(0, turn.slot.held - lost)
                self.bench.npu.kv[turn.slot.cache_id, turn.slot.held :] = -1
                return

    @invariant()
    def every_end_is_right(self) -> None:
        for handle, outputs in self.bench.said.items():
            if outputs and outputs[-1].final and outputs[-1].error is None:
                prompt, count = self.asked[handle]
                assert self.bench.tokens(handle) == solo(prompt, count, VOCAB)

    @invariant()
    def tables_tell_the_truth(self) -> None:
        engine = self.bench.engine
        owned = [turn.slot.cache_id for turn in engine._turns.values() if turn.slot is not None]
        assert len(set(owned)) == len(owned)
        assert sorted(engine._slots.owners().values()) == sorted(owned)
        for slot in engine._slots._slots:
            held = slot.tokens[: slot.held].tolist()
            assert self.bench.npu.kv[slot.cache_id, : slot.held].tolist() == chain(held)

    def teardown(self) -> None:
        self.bench.npu.fail_at.clear()
        self.bench.run()
        self.every_end_is_right()
        assert all(outputs and outputs[-1].final for outputs in self.bench.said.values())


class AllPositions(EngineMachine):
    slots = 3
    logits = "all"


class OneSlot(EngineMachine):
    slots = 1


LIFE = settings(max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestLastOnly = EngineMachine.TestCase
TestAllPositions = AllPositions.TestCase
TestOneSlot = OneSlot.TestCase
for _case in (TestLastOnly, TestAllPositions, TestOneSlot):
    _case.settings = LIFE
