"""Puts client/ on the path, and starts a scripted gRPC server for the real tritonclient."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "client"), str(HERE)]

from scripted_server import ScriptedServer  # noqa: E402


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    try:
        yield made
    finally:
        made.stop()
