"""Counters of the emulated runtime, read from the same and from another process, while it runs and after."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from twin import artefact, configure, forget, refused, run

from triton_mblt.emulator import site_path
from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime._kernel import Row
from triton_mblt.emulator.site.qbruntime._records import RING
from triton_mblt.emulator.site.qbruntime._stats import Stats, stats
from triton_mblt.emulator.stats import read_stats


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run")
    yield
    forget()


def test_counts_calls_rows_tokens_and_transfers(tmp_path: Path) -> None:
    model = q.load(artefact(tmp_path, batch=4))
    begin = time.monotonic_ns()
    run(model, ([1, 2, 3], 0, 1), ([4], 0, 3))
    run(model, ([1], 3, 1), ([4], 1, 3), ([5], 0, 0))
    end = time.monotonic_ns()
    with refused("Model_InvalidBatchParam"):
        run(model, ([1], 0, 9))
    model.load_cache_memory(model.dump_cache_memory(1), 2)
    (found,) = read_stats(os.getpid())
    latest = found.pop("latest")  # type: ignore[misc]
    seconds = found.pop("infer_s")  # type: ignore[misc]
    assert found == {
        "pid": os.getpid(), "calls": 2, "rows": 5, "tokens": 7, "prefill_rows": 1, "decode_rows": 4, "dumps": 1,
        "loads": 1, "refused": 1, "failed": 0,
    }  # fmt: skip
    assert 0 < seconds <= (end - begin) * 1e-9
    assert [(call["rows"], call["tokens"], call["cache_ids"]) for call in latest] == [(2, 4, [1, 3]), (3, 3, [0, 1, 3])]
    assert begin <= latest[0]["start_ns"] <= latest[0]["end_ns"] <= latest[1]["start_ns"] <= latest[1]["end_ns"] <= end


def test_the_latest_calls_are_kept(tmp_path: Path) -> None:
    counters = stats(tmp_path / "run")
    for number in range(RING + 10):
        counters.called(number, number + 1, 2_000_000, [Row(1, 0, number % 128)], 1)
    (found,) = read_stats()
    assert found["calls"] == RING + 10
    assert [call["start_ns"] for call in found["latest"]] == list(range(11, RING + 10))
    assert all(call["cache_ids"] == [call["start_ns"] % 128] for call in found["latest"])
    assert found["latest"][-1]["nominal_ms"] == pytest.approx(2)
    (few,) = read_stats(latest=2)
    assert few["latest"] == found["latest"][-2:]
    (none,) = read_stats(latest=0)
    assert none["latest"] == []


def test_an_idle_emulator_has_no_calls(tmp_path: Path) -> None:
    assert read_stats() == []
    q.load(artefact(tmp_path))
    (found,) = read_stats()
    assert (found["calls"], found["latest"]) == (0, [])
    assert read_stats(os.getpid() + 1) == []


def test_a_file_whose_pid_was_used_again_is_removed(tmp_path: Path) -> None:
    Stats(tmp_path / "run" / f"{os.getpid()}.stats")
    path = tmp_path / "run" / f"{os.getpid()}.stats"
    data = bytearray(path.read_bytes())
    data[16] ^= 1  # another start time of the process
    path.write_bytes(data)
    assert read_stats() == []
    assert not path.exists()


def test_a_new_process_clears_away_what_killed_ones_left(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in ("4194305.stats", "4194305.faults.json", "4194305.new", f"{os.getpid()}.faults.json", "notes.txt"):
        (run_dir / name).write_text("x")
    q.load(artefact(tmp_path))
    left = {path.name for path in run_dir.iterdir()}
    assert left == {f"{os.getpid()}.stats", f"{os.getpid()}.faults.json", "notes.txt"}


def test_read_from_outside_while_it_runs(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, qbruntime as q\n"
        "model = q.load(sys.argv[1])\n"
        "for line in sys.stdin:\n"
        "    model.infer(np.ones((1, 1, int(line), 32), np.float32)); print('done', flush=True)\n"
    )
    run_dir = tmp_path / "elsewhere"
    env = {
        "PYTHONPATH": str(site_path()), "MBLT_EMULATOR_MODE": "latency", "MBLT_EMULATOR_PROFILE": "seed-0ms",
        "MBLT_EMULATOR_RUN_DIR": str(run_dir),
    }  # fmt: skip
    command = [sys.executable, "-c", code, artefact(tmp_path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for count, tokens in enumerate((5, 1, 7), start=1):
            child.stdin.write(f"{tokens}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            (found,) = read_stats(child.pid, run_dir=run_dir)
            assert (found["calls"], found["latest"][-1]["tokens"]) == (count, tokens)
        child.stdin.close()
        assert child.wait(30) == 0
    assert list(run_dir.iterdir()) == []
