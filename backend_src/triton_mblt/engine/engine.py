"""The engine: plan -> run -> commit, one device call per step, single-threaded.

Owns every open turn. User errors and cancellations come out of `step` as Outputs like everything else, so that each
request ends exactly once. Knows nothing of Triton, pipes or `qbruntime`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from triton_mblt.core.errors import Cancelled, MbltError, NpuFault
from triton_mblt.core.events import Output
from triton_mblt.core.model_info import ModelInfo
from triton_mblt.core.request import GenerateRequest
from triton_mblt.core.settings import Settings
from triton_mblt.engine import sampler
from triton_mblt.engine.finish import judge_token
from triton_mblt.engine.runner import Runner, StepLogits
from triton_mblt.engine.sampler import Sampled
from triton_mblt.engine.saying import Saying, render
from triton_mblt.engine.scheduler import Scheduler, Share
from triton_mblt.engine.sequences import SequenceTable
from triton_mblt.engine.slots import SlotTable
from triton_mblt.engine.turn import Turn
from triton_mblt.engine.turn_factory import TurnFactory
from triton_mblt.npu.device import Device
from triton_mblt.text.tokenizer import TextTokenizer

log = logging.getLogger(__name__)


class Engine:
    """Serves the turns of one loaded model. Not thread-safe: one thread calls everything."""

    def __init__(self, model: Device, tokenizer: TextTokenizer, settings: Settings) -> None:
        spec = model.spec
        self._model = model
        self._tokenizer = tokenizer
        self._slots = SlotTable(spec.slots, spec.max_cache)
        self._scheduler = Scheduler(spec, self._slots, settings.max_prefill_tokens_per_step)
        self._runner = Runner(model, self._slots)
        self._sequences = SequenceTable()
        self._factory = TurnFactory(tokenizer, spec)
        self.info = ModelInfo(
            name=settings.name,
            vocab_size=self._factory.vocab_size,
            max_model_len=spec.max_cache,
            slots=spec.slots,
            prefill_chunk=spec.row_limit,
            logits=spec.logits,
            eos_token_ids=tuple(sorted(tokenizer.eos_ids)),
            device=spec.device,
        )
        self._turns: dict[int, Turn] = {}
        self._said: list[Saying | Output] = []
        self._generated = 0

    def submit(self, request: GenerateRequest) -> None:
        """Take a request in; a START ends what its sequence still had open (design 4)."""
        if request.start:
            for old in self._sequences.open_turns(request.key):
                self._end(old, old.buffer.error(Cancelled("replaced by a new START").info(old.request.request_id)))
        try:
            turn = self._factory.make(request)
        except MbltError as error:
            info = error.info(request.request_id)
            self._said.append(Output(request.handle, "", (), error=info, num_input_tokens=len(request.prompt) // 4))
            return
        self._turns[turn.handle] = turn
        if self._sequences.add(turn):
            self._scheduler.add(turn)

    def abort(self, handle: int, reason: str) -> None:
        """End a request with CANCELLED before the next device call. Unknown handles are ignored: the request has
        ended."""
        turn = self._turns.get(handle)
        if turn is not None:
            self._end(turn, turn.buffer.error(Cancelled(reason).info(turn.request.request_id)))

    def has_work(self) -> bool:
        return bool(self._turns or self._said)

    def step(self, hand_over: Callable[[list[Saying | Output]], None]) -> None:
        """At most one device call. `hand_over` gets what there is to say, for `render`: what earlier steps said as soon
        as the device works, the rest when nothing more will run."""
        shares = self._runner.covered(self._scheduler.plan())
        if shares:
            try:
                logits = self._runner.run(shares, partial(self._hand_over, hand_over))
            except NpuFault as fault:
                self._fail(shares, fault)
            else:
                self._commit(shares, logits)
        if not self._turns:
            self._hand_over(hand_over)

    def _hand_over(self, receiver: Callable[[list[Saying | Output]], None]) -> None:
        if self._said:
            said, self._said = self._said, []
            receiver(said)

    def render(self, said: Sequence[Saying | Output]) -> list[Output]:
        """What a step said, as Outputs. Called by one thread, which may be another than that of the steps, with every
        step's list in order."""
        rendered = [one if isinstance(one, Output) else render(one, self._tokenizer) for one in said]
        return [output for output in rendered if output is not None]

    def stats(self) -> dict[str, Any]:
        """Counters and states for `lm_control` stats."""
        return {
            "slots": {"total": self._slots.count, "free": self._slots.free},
            "turns": {"waiting": self._scheduler.waiting, "running": self._scheduler.running, "open": len(self._turns)},
            "sequences": len(self._sequences),
            "device_calls": self._runner.calls,
            "device_tokens": self._runner.tokens,
            "generated_tokens": self._generated,
            "rebuilds": self._runner.rebuilds,
            "prefix": {**self._slots.matches, "tokens_saved": self._slots.tokens_saved},
        }

    def close(self) -> None:
        self._model.close()

    def _commit(self, shares: list[Share], logits: StepLogits) -> None:
        """Score prompts, sample, count what is computed, and say what follows from it."""
        done = [index for index, share in enumerate(shares) if share.completes]
        turns = [shares[index].turn for index in done]
        sampled = sampler.sample(logits.last(done), [turn.sampler for turn in turns]) if done else []
        for index, (turn, length) in enumerate(shares):
            if turn.scores is not None:
                rows = logits.of(index)
                turn.scores.take(rows, turn.computed + length - len(rows), turn.tokens)
            turn.computed += length
        for turn, result in zip(turns, sampled, strict=True):
            self._accept(turn, result)

    def _accept(self, turn: Turn, result: Sampled | MbltError) -> None:
        if isinstance(result, MbltError):
            self._fail_turn(turn, result)
            return
        turn.append(result.token)
        self._generated += 1
        saying = judge_token(turn, result)
        if saying.ending is None:
            self._said.append(saying)
        else:
            self._end(turn, saying)

    def _fail(self, shares: list[Share], fault: NpuFault) -> None:
        log.error("%s (%d sequences lost)", fault, len(shares))
        for share in shares:
            self._fail_turn(share.turn, fault)

    def _fail_turn(self, turn: Turn, fault: MbltError) -> None:
        assert turn.slot is not None
        self._slots.invalidate(turn.slot)
        self._end(turn, turn.buffer.error(fault.info(turn.request.request_id)))

    def _end(self, turn: Turn, last: Saying | Output) -> None:
        """The only exit of a turn: free the slot, let the next turn of its sequence go, say the last word."""
        del self._turns[turn.handle]
        was_active = self._sequences.is_active(turn)
        if was_active:
            self._scheduler.remove(turn)
        following = self._sequences.remove(turn)
        if following is not None:
            self._scheduler.add(following)
        self._said.append(last)
