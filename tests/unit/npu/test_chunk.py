"""Chunk rules of contract 4.3, one row each."""

from __future__ import annotations

import pytest

from triton_mblt.npu.chunk import configured_chunk, row_limit


@pytest.mark.parametrize(
    ("value", "mode", "chunk"),
    [
        (256, "single", 256),
        ("256", "single", 256),
        (0, "single", 128),
        (-5, "single", 128),
        ("abc", "single", 128),
        (True, "single", 128),
        (64.0, "single", 128),
        (None, None, 128),
        ({"single": 256, "global4": 512}, "global4", 512),
        ({"single": 256, "default": 64}, "global8", 64),
        ({"single": 256, "DEFAULT": 32}, "global8", 32),
        ({"single": 256}, "auto", 256),
        ({"single": 256}, None, 256),
        ({"single": 256, "global4": 512}, "auto", 128),
        ({"single": 256}, "global4", 128),
        ({"single": "x", "global4": 512}, "auto", 512),
    ],
)
def test_configured_chunk(value: object, mode: str | None, chunk: int) -> None:
    assert configured_chunk(value, mode) == chunk


@pytest.mark.parametrize(
    ("configured", "batched", "artefact", "limit"),
    [
        (512, False, 4096, 512),
        (512, True, 4096, 128),
        (512, False, 256, 256),
        (64, True, 1024, 64),
        (512, False, 0, 512),
    ],
)
def test_row_limit(configured: int, batched: bool, artefact: int, limit: int) -> None:
    assert row_limit(configured, batched=batched, artefact_limit=artefact) == limit
