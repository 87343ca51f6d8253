#!/usr/bin/env python3
"""Chat in the terminal with a model behind Triton, over gRPC streaming. Needs only tritonclient[grpc] and numpy.

Ctrl-C cancels the answer; Ctrl-C again or at the prompt, or Ctrl-D, leaves. Owns the terminal; conversation, stream
and control calls are in the files beside it.
"""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, TextIO

import tritonclient.grpc as grpcclient

from conversation import Conversation, abort
from triton_control import Control, Lease
from triton_errors import ServerError
from triton_stream import Chunk, Turn

INTERRUPTED = 130
_LOOK_S = 0.1


@dataclass
class Reading:
    """What one answer was like. Times are seconds of the monotonic clock."""

    asked: float
    text: str = ""
    first: float = 0.0
    last: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str = ""
    first_tokens: int = field(default=0, repr=False)

    def add(self, chunk: Chunk, now: float) -> None:
        self.text += chunk.text
        self.input_tokens = max(self.input_tokens, chunk.input_tokens)
        self.output_tokens += chunk.output_tokens
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if not self.first and chunk.output_tokens:
            self.first, self.first_tokens = now, chunk.output_tokens
        self.last = now

    def line(self) -> str:
        """Counts, time to first token, and the rate of the tokens after it."""
        parts = [f"{self.input_tokens} tokens in", f"{self.output_tokens} out"]
        if self.first:
            parts.append(f"first after {self.first - self.asked:.2f} s")
        if self.last > self.first and self.output_tokens > self.first_tokens:
            parts.append(f"{(self.output_tokens - self.first_tokens) / (self.last - self.first):.1f} tokens/s")
        if self.finish_reason:
            parts.append(self.finish_reason)
        return "[" + ", ".join(parts) + "]"


class CtrlC:
    """Ctrl-C while an answer streams: noted at first, so that it may come at any moment; then KeyboardInterrupt."""

    def __init__(self) -> None:
        self.pressed = False

    def __enter__(self) -> CtrlC:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


class Chat:
    """One conversation on a terminal. `out` gets the answers, `notes` everything else."""

    def __init__(
        self, conversation: Conversation, control: Control, out: TextIO, notes: TextIO, show_stats: bool
    ) -> None:
        self._conversation = conversation
        self._control = control
        self._out = out
        self._notes = notes
        self._show_stats = show_stats

    def turn(self, text: str, *, last: bool = False) -> None:
        """Ask and print the answer as it comes. Errors: ServerError; KeyboardInterrupt when Ctrl-C came twice."""
        reading = Reading(asked=time.monotonic())
        try:
            with CtrlC() as ctrl_c:
                turn = self._read(self._conversation.ask(text, last=last), reading, ctrl_c)
        except ServerError:
            self._conversation.failed()
            raise
        finally:
            self._out.write("\n" if reading.text else "")
            self._out.flush()
        self._conversation.answered(turn, reading.text)
        if ctrl_c.pressed:
            print("[cancelled]", file=self._notes)
        if self._show_stats:
            print(reading.line(), file=self._notes)

    def _read(self, turn: Turn, reading: Reading, ctrl_c: CtrlC) -> Turn:
        """Follow the turn to its end; returns the turn that answered, which is another when the sequence was lost."""
        with Lease(self._control, turn.request), closing(turn):
            try:
                self._follow(turn, reading, ctrl_c)
                return turn
            except ServerError as error:
                second = None if reading.text else self._conversation.again(error, turn)
                if second is None:
                    raise
        return self._read(second, reading, ctrl_c)

    def _follow(self, turn: Turn, reading: Reading, ctrl_c: CtrlC) -> None:
        while not ctrl_c.pressed:
            try:
                chunk = turn.wait(_LOOK_S)
            except queue.Empty:
                continue
            if chunk is None:
                return
            self._show(chunk, reading)
        self._show(abort(self._control, turn), reading)

    def _show(self, chunk: Chunk, reading: Reading) -> None:
        reading.add(chunk, time.monotonic())
        self._out.write(chunk.text)
        self._out.flush()


def talk(chat: Chat, ask: Callable[[], str], notes: TextIO) -> None:
    """Questions and answers until Ctrl-D or Ctrl-C at the prompt. A failed answer is one line, and the talk goes on."""
    while True:
        try:
            text = ask()
        except (EOFError, KeyboardInterrupt):
            print(file=notes)
            return
        if not text.strip():
            continue
        try:
            chat.turn(text)
        except ServerError as error:
            print(error.line(), file=notes)


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Chat with a model behind Triton. Ctrl-C cancels an answer.")
    parser.add_argument("--url", default="127.0.0.1:8001", help="Triton's gRPC address (default %(default)s)")
    parser.add_argument("--model", default="mblt_ensemble", help="model that takes sequences (default %(default)s)")
    parser.add_argument("--control-model", default="lm_control", help="model that takes aborts (default %(default)s)")
    parser.add_argument("--system", default="", help="system message of the conversation")
    parser.add_argument("--message", help="ask this one question, print the answer and end")
    parser.add_argument("--max-tokens", type=int, help="most tokens of one answer (default: what the model has left)")
    parser.add_argument("--temperature", type=float, help="0 for the most likely answer (default: the model's own)")
    parser.add_argument("--seed", type=int, help="repeat the same sampled answer")
    parser.add_argument(
        "--lease", type=int, default=15, help="seconds after which the server drops the answer of a dead client"
    )
    parser.add_argument("--show-stats", action="store_true", help="token counts and speed after each answer")
    return parser.parse_args(argv)


def sampling_of(given: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given; the model's defaults hold for the others."""
    named = {"max_tokens": given.max_tokens, "temperature": given.temperature, "seed": given.seed}
    return {name: value for name, value in named.items() if value is not None}


def main(argv: Sequence[str] | None = None) -> int:
    given = options(argv)
    with (
        grpcclient.InferenceServerClient(given.url) as client,
        grpcclient.InferenceServerClient(given.url) as control_client,
    ):
        conversation = Conversation(client, given.model, sampling_of(given), system=given.system, lease_s=given.lease)
        control = Control(control_client, given.control_model)
        chat = Chat(conversation, control, sys.stdout, sys.stderr, given.show_stats)
        try:
            if given.message is not None:
                chat.turn(given.message, last=True)
            else:
                with suppress(ImportError):  # not on every Python: without it lines cannot be edited
                    import readline  # noqa: F401
                print(f"{given.model} at {given.url}. Ctrl-C cancels an answer, Ctrl-D leaves.", file=sys.stderr)
                talk(chat, lambda: input("> "), sys.stderr)
                conversation.end()
        except ServerError as error:
            print(error.line(), file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
