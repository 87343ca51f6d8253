"""kill -9 of the NPU worker under load: every request ends, the next one is answered, Triton never notices."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from lm_control import Control
from triton_calls import Stream
from triton_server import TritonServer

STREAMS = 8
TIMES = 10


@pytest.mark.timeout(600)
def test_ten_kills_with_eight_streams_open(server: TritonServer, stream: Stream, control: Control) -> None:
    triton = _tritonserver(server)
    short = {"temperature": 0, "max_tokens": 8}
    expected = stream.ask("mblt_ensemble", text="after", sampling=short, sequence=900).text
    for time_number in range(TIMES):
        pid = control.worker_pid()
        control.slow_down(0.05)
        replies = [
            stream.send(
                "mblt_ensemble", text=f"stream {n}", sequence=1000 + STREAMS * time_number + n, stream=True,
                sampling={"max_tokens": 400, "ignore_eos": True},
            )
            for n in range(STREAMS)
        ]  # fmt: skip
        for reply in replies:
            reply.wait_responses(1)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        after = stream.send("mblt_ensemble", text="after", sampling=short, sequence=2000 + time_number)
        for reply in replies:
            assert reply.wait(2.0).info.code in ("UNAVAILABLE", "INTERNAL")
        assert time.monotonic() - killed < 2.0
        assert after.wait(60).text == expected
        assert [reply.finals for reply in replies] == [1] * STREAMS
        assert control.worker_pid() != pid
    assert _tritonserver(server) == triton
    assert server.get("/v2/health/ready")[0] == 200
    assert control.stats()["workers"][0]["restarts"] >= TIMES


def _tritonserver(server: TritonServer) -> str:
    """The launcher's children: tritonserver alone, by pid."""
    pid = server.launcher_pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()
