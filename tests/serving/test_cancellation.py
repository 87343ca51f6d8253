"""A request nobody waits for leaves the NPU at once: cancel, disconnect, abort, lease, each on its own entry."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lm_control import Control, Refused
from triton_calls import Stream, eventually
from triton_server import TritonServer

pytestmark = pytest.mark.e2e

CALL_S = 0.25  # far longer than a round of the poller
ENDLESS = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture
def slow(control: Control) -> Iterator[Control]:
    """Device calls of CALL_S each; at the end everything must be free again."""
    control.slow_down(CALL_S)
    yield control
    control.back_to_speed()
    control.wait_idle()


def row_leaves(control: Control, server: TritonServer, leave: Callable[[], None]) -> None:
    """Beside another stream, `leave` ends one: at most the call under way may still have both rows."""
    with Stream(server.grpc) as other:
        beside = other.send("lm", ids=[5, 6, 7], sampling=ENDLESS, sequence="beside", stream=True)
        began = time.monotonic_ns()
        beside.wait_responses(1)
        eventually(lambda: any(call["rows"] == 2 for call in control.calls_since(began)))
        leave()
        left = time.monotonic_ns()
        eventually(lambda: len(control.calls_since(left)) >= 4)
        rows = [call["rows"] for call in control.calls_since(left)]
        assert rows[:1] in ([1], [2])
        assert set(rows[1:]) == {1}
        assert not beside.error


def test_cancel_on_the_lm(server: TritonServer, slow: Control) -> None:
    with Stream(server.grpc) as stream:
        reply = stream.send("lm", ids=[1, 2, 3], sampling=ENDLESS, sequence="c1", stream=True)
        reply.wait_responses(1)
        row_leaves(slow, server, stream.cancel)


def test_cancel_on_the_front(server: TritonServer, slow: Control) -> None:
    with Stream(server.grpc) as stream:
        reply = stream.send("mblt", text="tell me", sampling=ENDLESS, stream=True)
        reply.wait_responses(1)
        row_leaves(slow, server, stream.cancel)


def test_cancel_on_the_front_without_streaming(server: TritonServer, slow: Control) -> None:
    with Stream(server.grpc) as stream:
        stream.send("mblt", text="tell me", sampling=ENDLESS)
        eventually(lambda: slow.stats()["open_requests"] == 1)
        row_leaves(slow, server, stream.cancel)


def test_a_closed_http_connection_ends_generate_stream(server: TritonServer, slow: Control) -> None:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=60)
    body = {"text_input": "tell me", "stream": True, **ENDLESS}
    connection.request("POST", "/v2/models/mblt/generate_stream", json.dumps(body))
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")

    def hang_up() -> None:
        answer.close()
        connection.close()

    row_leaves(slow, server, hang_up)


def test_abort_through_the_ensemble(server: TritonServer, slow: Control, stream: Stream) -> None:
    reply = stream.send(
        "mblt_ensemble", text="tell me", sampling=ENDLESS, sequence="a1", stream=True, parameters={"abort_token": "s3"}
    )
    reply.wait_responses(1)
    assert slow.call("abort", sequence_id="a1", abort_token="wrong") == {"aborted": False}
    assert slow.call("abort", sequence_id="a1") == {"aborted": False}
    row_leaves(slow, server, lambda: aborts(slow, sequence_id="a1", abort_token="s3"))
    assert reply.wait().info.code == "CANCELLED"
    assert reply.finals == 1


def aborts(control: Control, **who: str) -> None:
    assert control.call("abort", **who) == {"aborted": True}


def test_abort_by_request_id_of_a_request_on_the_front(slow: Control, stream: Stream) -> None:
    reply = stream.send(
        "mblt", text="tell me", sampling=ENDLESS, request_id="mine", stream=True, parameters={"abort_token": "s4"}
    )
    reply.wait_responses(1)
    aborts(slow, request_id="mine", abort_token="s4")
    assert reply.wait().info.code == "CANCELLED"
    assert (reply.info.request_id, reply.finals) == ("mine", 1)


def test_a_queued_request_can_be_cancelled(server: TritonServer, slow: Control) -> None:
    """Nine requests for eight slots: the one that waits goes too."""
    with Stream(server.grpc) as stream:
        for number in range(9):
            stream.send("lm", ids=[number + 3], sampling=ENDLESS, sequence=f"q{number}", stream=True)
        eventually(lambda: slow.stats()["open_requests"] == 9)
        stream.cancel()
        slow.wait_idle()


def test_a_new_start_replaces_what_the_sequence_was_doing(slow: Control, stream: Stream) -> None:
    first = stream.send("mblt_ensemble", text="tell me", sampling=ENDLESS, sequence="again", end=False, stream=True)
    first.wait_responses(1)
    second = stream.send("mblt_ensemble", text="no, this", sampling={"max_tokens": 2}, sequence="again", stream=True)
    assert first.wait().info.code == "CANCELLED"
    assert second.wait().error == ""


CLIENT = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from triton_calls import Stream
stream = Stream(sys.argv[3])
reply = stream.send("mblt_ensemble", text="tell me", sampling={"max_tokens": 400, "ignore_eos": True}, sequence="dead",
                    stream=True, parameters={"lease_s": 5})
reply.wait_responses(1)
print("streaming", flush=True)
time.sleep(60)
"""


def test_the_lease_of_a_killed_client_runs_out(server: TritonServer, slow: Control) -> None:
    support = Path(__file__).parents[1] / "support"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(support), server.env["PYTHONPATH"], server.grpc], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"streaming\n"
    assert slow.stats()["open_requests"] == 1
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    client.stdout.close()
    killed = time.monotonic()
    slow.wait_idle()
    assert time.monotonic() - killed < 7


def test_a_renewed_lease_lasts(slow: Control, stream: Stream) -> None:
    fields = {"lease_s": 1, "abort_token": "s5"}
    reply = stream.send(
        "mblt_ensemble", text="tell me", sampling=ENDLESS, sequence="l1", stream=True, parameters=fields
    )
    reply.wait_responses(1)
    for _ in range(6):
        time.sleep(0.4)
        assert slow.call("renew", sequence_id="l1", abort_token="s5") == {"renewed": True}
    assert not reply.error
    assert reply.wait(10).info.code == "CANCELLED"


def test_abort_of_nobody(control: Control) -> None:
    assert control.call("abort", sequence_id="nobody", abort_token="x") == {"aborted": False}
    with pytest.raises(Refused, match="name the sequence") as refused:
        control.call("abort", abort_token="x")
    assert refused.value.status == 400
