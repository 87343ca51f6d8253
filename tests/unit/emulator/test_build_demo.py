"""The demo model: built once, from the real weights, also when two processes want it at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.demo import DEMO_NAME, ensure_demo
from triton_mblt.emulator.site.qbruntime._artefact import read_artefact

ROOT = Path(__file__).parents[3]
ENSURE = """
import sys
from pathlib import Path
from triton_mblt.emulator.demo import ensure_demo
print(ensure_demo(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_two_processes_build_it_once(tmp_path: Path) -> None:
    leftover = tmp_path / f".{DEMO_NAME}.building-1-dead"
    leftover.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ENSURE, str(tmp_path)],
            env={"PYTHONPATH": str(ROOT / "backend_src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=240)[0].strip() for process in processes]
    package = tmp_path / DEMO_NAME
    assert answers == [str(package)] * 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".demo.lock", DEMO_NAME]
    artefact = read_artefact(package / f"{DEMO_NAME}.mxq")
    assert (artefact.batch, artefact.max_cache, artefact.row_limit, artefact.logits) == (8, 2048, 128, "last")
    assert (artefact.family, artefact.vocab, artefact.layers) == ("llama", 49152, 30)
    assert json.loads((package / "generation_config.json").read_text())["eos_token_id"] == 2
    made = (package / f"{DEMO_NAME}.mxq").stat().st_mtime_ns
    assert ensure_demo(tmp_path) == package
    assert (package / f"{DEMO_NAME}.mxq").stat().st_mtime_ns == made, "the second time must not build"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot write"):
        ensure_demo(tmp_path / "file" / "cache")
