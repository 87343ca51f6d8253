"""Worker processes of these tests must find the fake engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture(autouse=True)
def _workers_find_the_fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SUPPORT), inherited])))
