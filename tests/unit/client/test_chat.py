"""chat.py as a person runs it: a process with pipes, against a scripted server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from scripted_server import CLIENT, WAIT, Fail, ScriptedServer

from chat import Reading
from triton_stream import Chunk

LIMIT_S = 60.0


@pytest.fixture
def chat(server: ScriptedServer) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(CLIENT / "chat.py"), "--url", server.url, *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8"))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def test_one_question_prints_only_the_answer(server: ScriptedServer, chat: Callable) -> None:
    server.scripts = [["Par", "is", " 안녕 🙂"]]
    out, notes = chat("--message", "Capital?", "--temperature", "0", "--max-tokens", "5").communicate(timeout=LIMIT_S)
    assert (out, notes) == ("Paris 안녕 🙂\n", "")
    seen = server.turns[0]
    assert seen.model == "mblt_ensemble"
    assert seen.sampling == {"temperature": 0.0, "max_tokens": 5}
    assert (seen.parameters["sequence_start"], seen.parameters["sequence_end"]) == (True, True)
    assert seen.parameters["lease_s"] == 15


def test_failure_is_one_line_and_exit_code_one(server: ScriptedServer, chat: Callable) -> None:
    server.scripts = [[Fail('in ensemble \'e\', too long |mblt {"code":"INVALID_ARG","param":"messages"}|')]]
    process = chat("--message", "x")
    out, notes = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, notes) == (1, "", "INVALID_ARG (messages): too long\n")


def test_stats_are_shown_beside_the_answer(server: ScriptedServer, chat: Callable) -> None:
    out, notes = chat("--message", "x", "--show-stats").communicate(timeout=LIMIT_S)
    assert out == "ok\n"
    assert notes.startswith("[7 tokens in, 1 out, first after ")
    assert notes.endswith("stop]\n")


def test_ctrl_c_cancels_the_answer_and_the_conversation_goes_on(server: ScriptedServer, chat: Callable) -> None:
    server.scripts = [["half an ", WAIT], ["whole"]]
    process = chat()
    say(process, "tell me")
    assert server.reached.wait(LIMIT_S)
    process.send_signal(signal.SIGINT)
    say(process, "next")
    out, notes = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, notes
    assert "half an" in out
    assert "whole" in out
    assert "[cancelled]" in notes
    assert server.controls[0].named()[1] == server.turns[0].id
    assert [message["content"] for message in server.turns[1].messages] == ["tell me", "half an ", "next"]
    assert server.turns[-1].parameters["sequence_end"], "leaving with Ctrl-D ends the sequence"


def test_ctrl_c_twice_leaves(server: ScriptedServer, chat: Callable) -> None:
    server.scripts = [[WAIT]]
    server.abort_misses = 1000
    process = chat()
    say(process, "tell me")
    assert server.reached.wait(LIMIT_S)
    process.send_signal(signal.SIGINT)
    assert server.controlled.wait(LIMIT_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130
    assert "Traceback" not in process.stderr.read()


def test_failed_answer_does_not_end_the_talk(server: ScriptedServer, chat: Callable) -> None:
    server.scripts = [[Fail('busy |mblt {"code":"UNAVAILABLE"}|')], ["now"]]
    process = chat()
    out, notes = process.communicate("one\n\ntwo\n", timeout=LIMIT_S)
    assert process.returncode == 0
    assert "now" in out
    assert "UNAVAILABLE: busy\n" in notes
    assert len(server.turns) == 3, "two questions and the end of the sequence; the empty line is no question"


def test_rate_counts_the_tokens_after_the_first() -> None:
    reading = Reading(asked=10.0)
    for moment in (12.0, 12.5, 13.0):
        reading.add(Chunk("x", "", 4, 1, False), moment)
    assert reading.line() == "[4 tokens in, 3 out, first after 2.00 s, 2.0 tokens/s]"
    assert Reading(asked=time.monotonic()).line() == "[0 tokens in, 0 out]"
