"""What Triton's own processes are: small, and without anything that can crash or that costs memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from triton_server import TritonServer

pytestmark = pytest.mark.e2e


def stubs(server: TritonServer) -> dict[str, Path]:
    """Model name -> /proc folder of this server's stubs."""
    found = {}
    mark = f"MBLT_EMULATOR_RUN_DIR={server.folder / 'emulator'}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            words = (entry / "cmdline").read_text().split("\0")
            if words[0].endswith("python_backend_stub") and mark in (entry / "environ").read_bytes().split(b"\0"):
                found[Path(words[1]).parents[1].name] = entry
    return found


def test_no_stub_loads_torch_or_the_runtime(server: TritonServer) -> None:
    found = stubs(server)
    assert set(found) == {"tokenizer", "vision_encoder", "lm", "lm_control", "mblt"}
    for model, entry in found.items():
        maps = (entry / "maps").read_text()
        assert "python3" in maps
        assert [word for word in ("libtorch", "qbruntime", "libcv2") if word in maps] == [], model
