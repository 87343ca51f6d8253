"""The demo model behind a real tritonserver, and plain transformers on the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import demo_reference
from triton_server import SOURCE, TritonServer, serving

from triton_mblt.text.tokenizer import TextTokenizer


@pytest.fixture(scope="session")
def demo() -> Path:
    """Built once into the user's cache folder, as `make serve` does."""
    command = [sys.executable, "-m", "triton_mblt", "emulate", "demo"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def tokenizer(demo: Path) -> TextTokenizer:
    return TextTokenizer.load(demo)


@pytest.fixture(scope="session")
def reference(demo: Path) -> Any:
    torch.set_num_threads(2)
    return demo_reference(demo)


@pytest.fixture(scope="module")
def server(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with serving(demo, tmp_path_factory.mktemp("server"), OMP_NUM_THREADS="2") as running:
        yield running
