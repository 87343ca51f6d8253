"""The README's first answer: the question about France, through `mblt`, over HTTP and through the chat client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from triton_calls import http_events
from triton_server import TritonServer, plain_triton

pytestmark = pytest.mark.e2e

QUESTION = "What is the capital of France?"
ROOT = Path(__file__).parents[2]


def ask_over_http(server: TritonServer) -> tuple[int, str]:
    """Status and joined text; the answer must have come in more than one event."""
    body = {
        "messages": f'[{{"role": "user", "content": "{QUESTION}"}}]',
        "stream": True,
        "temperature": 0,
        "max_tokens": 40,
    }
    status, answer = server.post("/v2/models/mblt/generate_stream", body)
    events = [event["text_output"] for event in http_events(iter(answer.splitlines()))]
    assert len(events) > 1
    return status, "".join(events)


def test_generate_stream(server: TritonServer) -> None:
    status, text = ask_over_http(server)
    assert status == 200
    assert "Paris" in text


def test_chat_client(server: TritonServer) -> None:
    command = [sys.executable, str(ROOT / "client" / "chat.py"), "--url", server.grpc, "--temperature", "0"]
    done = subprocess.run([*command, "--message", QUESTION], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_a_tritonserver_started_by_hand(demo: Path, tmp_path: Path) -> None:
    """As the README says for a user's own server: the binary, this checkout's repository, MBLT_MODEL and MBLT_NPU."""
    repository = ROOT / "model_repository"
    with plain_triton(repository, tmp_path, MBLT_MODEL=str(demo), MBLT_NPU="emulated") as own:
        status, text = ask_over_http(own)
    assert status == 200
    assert "Paris" in text
