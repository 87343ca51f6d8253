"""One tritonserver for all tests of this folder: a tiny random model on the emulated NPU in compute mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lm_control import Control
from tiny_models import tiny_package
from triton_calls import Stream
from triton_server import TritonServer, serving

SLOTS = 8
MAX_LEN = 512


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_package("llama", tmp_path_factory.mktemp("packages"), batch=SLOTS, max_cache=MAX_LEN, chunk=128)


@pytest.fixture(scope="session")
def server(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with serving(package, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def stream(server: TritonServer) -> Iterator[Stream]:
    with Stream(server.grpc) as opened:
        yield opened


@pytest.fixture
def control(server: TritonServer) -> Iterator[Control]:
    """lm_control, and the check that a test leaves no request open and no slot taken."""
    calls = Control(server)
    yield calls
    calls.wait_idle()
