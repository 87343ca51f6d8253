"""The model zoo's own cache handling, unchanged, on the emulated runtime: what moves KV gives the same tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import greedy, reference_model, tiny_package

from triton_mblt.emulator import site_path
from triton_mblt.emulator.stats import read_stats

PROBE = Path(__file__).with_name("zoo_cache_probe.py")
TEXTS = [[7, 200, 31, 5, 90, 14, 60, 33], [44, 3, 120, 9, 18]]
COUNT = 6


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_caches_move_between_slots_copies_and_files(tmp_path: Path, batch: int) -> None:
    package = tiny_package("llama", tmp_path, batch=batch, logits="last")
    expected = [greedy(reference_model("llama"), text, COUNT, stop_at_eos=False) for text in TEXTS]
    job = {"package": str(package), "texts": TEXTS, "count": COUNT, "folder": str(tmp_path / "kv")}
    env = {
        **os.environ, "PYTHONPATH": str(site_path()), "MBLT_EMULATOR_RUN_DIR": str(tmp_path / "run"),
        "MBLT_MODEL_ZOO_VERBOSE": "1",
    }  # fmt: skip
    command = [sys.executable, str(PROBE), json.dumps(job)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answers["alternating"] == expected
    assert answers["copied"] == expected[0]
    assert answers["from file"] == expected[0]
    assert answers["moves"] > 0, "two caches on one slot must have moved their KV"
    assert answers["disposed"] is True
    assert read_stats(run_dir=tmp_path / "run") == []
