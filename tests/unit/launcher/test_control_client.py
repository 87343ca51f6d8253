"""Asking a server over HTTP: against a small HTTP server that plays `lm_control`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.launcher.control_client import ControlClient, LmProbe, Unreachable
from triton_mblt.launcher.rundir import RunDir

RUN = RunDir(Path("triton-mblt-1-x"), route_key="route", admin_key="secret")


class Control(ThreadingHTTPServer):
    """Answers stats with one open request less each time; notes the verbs. `answers` False: errors only."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.open_requests, self.answers, self.server_id = 3, True, RUN.server_id
        self.asked: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reply(self, request: dict[str, Any]) -> dict[str, object]:
        self.asked.append(request)
        if request["verb"] == "drain":
            return {"draining": True}
        self.open_requests -= 1
        return {"open_requests": self.open_requests}


class _Handler(BaseHTTPRequestHandler):
    server: Control

    def do_GET(self) -> None:
        self._send(200 if self.server.answers else 503, {"name": self.server.server_id})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.server.answers or self.path != "/v2/models/lm_control/infer":
            return self._send(500, {"error": "no"})
        (tensor,) = body["inputs"]
        assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("request", "BYTES", [1])
        reply = json.dumps(self.server.reply(json.loads(tensor["data"][0])))
        self._send(200, {"outputs": [{"name": "response", "data": [reply]}]})

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""


@pytest.fixture
def control() -> Iterator[Control]:
    server = Control()
    yield server
    server.shutdown()
    server.server_close()


def client_of(port: int) -> ControlClient:
    settings = ServerSettings(repository=Path("/r"), npu="emulated", http_port=port, grpc_port=1, metrics_port=2)
    return ControlClient(settings, RUN)


def test_another_server_on_our_port_is_not_ours(control: Control) -> None:
    client = client_of(control.server_port)
    assert client.is_ready()
    control.server_id = "triton"
    assert not client.is_ready()


def test_a_drain_waits_until_nothing_is_open(control: Control) -> None:
    assert client_of(control.server_port).drain(60.0, lambda: False) is True
    assert control.asked[0] == {"verb": "drain", "limit_s": 45.0, "admin_key": "secret"}
    assert control.asked[1:] == [{"verb": "stats"}] * 3
    assert control.open_requests == 0


def test_a_drain_ends_at_its_limit_and_when_hurried(control: Control) -> None:
    control.open_requests = 10**9
    assert client_of(control.server_port).drain(0.3, lambda: False) is False
    assert client_of(control.server_port).drain(1e6, lambda: True) is False


def test_a_server_that_cannot_be_asked_is_not_drained(control: Control) -> None:
    control.answers = False
    client = client_of(control.server_port)
    assert client.drain(60.0, lambda: False) is False
    assert (client.is_ready(), client.has_control()) == (False, False)
    with pytest.raises(Unreachable, match="500"):
        client.ask("stats", 5.0)


def test_nobody_listening_is_unreachable(control: Control) -> None:
    with pytest.raises(Unreachable):
        client_of(4).ask("stats", 1.0)


def test_the_probe_complains_after_several_silences_and_forgets_them(control: Control) -> None:
    probe = LmProbe(client_of(control.server_port), every_s=0.01, limit_s=5.0, failures=2)
    try:
        wait_for(lambda: bool(control.asked))
        assert probe.trouble() is None
        control.answers = False
        wait_for(lambda: probe.trouble() is not None)
        assert "lm_control answers stats with 500" in str(probe.trouble())
        control.answers = True
        wait_for(lambda: probe.trouble() is None)
    finally:
        probe.close()


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 20
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
