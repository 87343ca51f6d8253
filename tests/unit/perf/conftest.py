"""Puts perf/ on the path: its scripts import each other as the files beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "perf"))
