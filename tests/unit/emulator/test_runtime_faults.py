"""Faults on demand: each kind does what it says, when it says, and no more; from the start and from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twin import VOCAB, artefact, configure, forget, refused, run

from triton_mblt.core.errors import ConfigError
from triton_mblt.emulator import site_path
from triton_mblt.emulator.faults import clear, inject
from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime._faults import parse_fault
from triton_mblt.emulator.site.qbruntime._options import OptionError
from triton_mblt.emulator.stats import read_stats

TEXT = [5, 3, 9, 1]


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run")
    yield
    forget()


@pytest.fixture
def model(tmp_path: Path) -> q.Model:
    return q.load(artefact(tmp_path, batch=4))


def armed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *faults: dict[str, Any], **changes: Any) -> q.Model:
    """A model in a process that starts with these faults."""
    configure(monkeypatch, tmp_path / "run", FAULTS=json.dumps(faults))
    return q.load(artefact(tmp_path, batch=4, **changes))


def put(fault: dict[str, Any]) -> None:
    inject(os.getpid(), fault)


def test_raise_at_a_call_and_only_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = armed(monkeypatch, tmp_path, {"kind": "raise", "at_call": 3, "status": "Driver_WaitDoneTimeout"})
    for position in (0, 1):
        run(model, ([1], position, 0))
    with refused("Driver_WaitDoneTimeout"):
        run(model, ([1], 2, 0))
    assert not np.isnan(run(model, ([1], 2, 0))).any()
    (stats,) = read_stats(os.getpid())
    assert (stats["calls"], stats["failed"]) == (3, 1)


def test_a_failed_call_wrote_nothing(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    put({"kind": "raise", "status": "Model_PredictError"})
    with refused("Model_PredictError"):
        run(model, ([1], 4, 0))
    assert np.isnan(run(model, ([1], 5, 0))).all()


def test_injected_faults_start_with_the_next_call_and_may_wait(model: q.Model) -> None:
    run(model, ([1], 0, 0))
    put({"kind": "raise", "after": 1, "times": 2, "status": "Acc_NPUTimeout"})
    run(model, ([1], 0, 0))
    for _ in range(2):
        with refused("Acc_NPUTimeout"):
            run(model, ([1], 0, 0))
    run(model, ([1], 0, 0))


def test_a_spent_fault_does_not_come_back_with_another(model: q.Model) -> None:
    put({"kind": "raise", "status": "BadAlloc"})
    with refused("BadAlloc"):
        run(model, ([1], 0, 0))
    put({"kind": "raise", "status": "InternalError"})
    with refused("InternalError"):
        run(model, ([1], 0, 0))
    run(model, ([1], 0, 0))


def test_clear_disarms(model: q.Model) -> None:
    put({"kind": "raise", "times": None, "status": "BadAlloc"})
    with refused("BadAlloc"):
        run(model, ([1], 0, 0))
    clear(os.getpid())
    run(model, ([1], 0, 0))


def test_a_file_of_an_earlier_process_is_ignored(model: q.Model, tmp_path: Path) -> None:
    fault = {"kind": "raise", "status": "BadAlloc", "id": "x"}
    path = tmp_path / "run" / f"{os.getpid()}.faults.json"
    path.write_text(json.dumps({"started": 1, "faults": [fault]}))
    run(model, ([1], 0, 0))
    path.write_text("not json")
    run(model, ([1], 0, 0))


def test_hang_and_slow_take_their_time(model: q.Model) -> None:
    put({"kind": "hang", "seconds": 0.2})
    begin = time.monotonic()
    run(model, ([1], 0, 0))
    assert time.monotonic() - begin >= 0.2
    put({"kind": "slow", "factor": 50})
    run(model, ([1] * 12, 0, 0))
    (stats,) = read_stats(os.getpid())
    call = stats["latest"][-1]
    assert call["nominal_ms"] > 0, "in a mode without pacing, what the call really took is stretched"
    assert call["end_ns"] - call["start_ns"] >= call["nominal_ms"] * 1e6


def test_slow_stretches_the_nominal_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    profile.write_text('{"kind": "chunked", "chunk_tokens": 128, "prefill_ms_per_chunk": 0, "decode_ms_per_call": 30}')
    slow = json.dumps([{"kind": "slow", "factor": 3, "at_call": 2}])
    configure(monkeypatch, tmp_path / "run", FAULTS=slow, PROFILE=str(profile))
    model = q.load(artefact(tmp_path, batch=4))
    for position in range(3):
        run(model, ([1], position, 0))
    (stats,) = read_stats(os.getpid())
    assert [call["nominal_ms"] for call in stats["latest"]] == pytest.approx([30, 90, 90])


def test_drop_append_loses_the_tokens_silently(model: q.Model) -> None:
    run(model, (TEXT, 0, 0), (TEXT, 0, 1))
    honest = run(model, ([8], 4, 1))
    put({"kind": "drop_append"})
    assert np.array_equal(run(model, ([8], 4, 0)), honest)
    assert np.isnan(run(model, ([9], 5, 0))).all()
    assert not np.isnan(run(model, ([9], 5, 1))).any()


def test_corrupt_dump_changes_the_text(model: q.Model) -> None:
    run(model, (TEXT, 0, 0))
    good = model.dump_cache_memory(0)
    put({"kind": "corrupt_dump"})
    bad = model.dump_cache_memory(0)
    assert [len(blob) for blob in bad] == [len(blob) for blob in good]
    assert all(one != other for one, other in zip(good, bad, strict=True))
    assert model.dump_cache_memory(0) == good
    expected = run(model, ([4], len(TEXT), 0))
    model.load_cache_memory(good, 1)
    model.load_cache_memory(bad, 2)
    assert np.array_equal(run(model, ([4], len(TEXT), 1)), expected)
    assert not np.array_equal(run(model, ([4], len(TEXT), 2)), expected)


def test_device_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: q.Model) -> None:
    fresh, accelerator = q.Model(artefact(tmp_path)), q.Accelerator()
    put({"kind": "device_missing"})
    for use in (q.Accelerator, lambda: fresh.launch(accelerator), lambda: run(model, ([1], 0, 0))):
        with refused("Driver_NotInitialized"):
            use()
    clear(os.getpid())
    fresh.launch(accelerator)
    configure(monkeypatch, tmp_path / "run", DEVICES="0")
    with refused("Acc_DeviceNotFound"):
        q.Accelerator()


@pytest.mark.parametrize("logits", ["last", "all"])
def test_script_puts_tokens_on_top_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logits: str) -> None:
    script = {"kind": "script", "tokens": [11, 22, 33], "cache_id": 1}
    model = armed(monkeypatch, tmp_path, script, logits=logits)

    def best(*rows: Any) -> list[int]:
        found = run(model, *rows).reshape(-1, VOCAB)
        ends = np.cumsum([len(tokens) for tokens, _, _ in rows]) - 1 if logits == "all" else range(len(rows))
        return [int(found[end].argmax()) for end in ends]

    assert best(([1, 2, 3], 0, 0), ([4, 5], 0, 1))[1] == 11
    assert [best(([token], 2 + n, 1))[0] for n, token in enumerate((11, 22))] == [22, 33]
    free = best(([33], 4, 1), ([33], 3, 0))
    assert free[0] == best(([4, 5, 11, 22, 33], 0, 2))[0], "after its end the model speaks for itself"
    assert best(([9, 9], 0, 1)) == [11], "a new prompt begins it again"


def test_script_from_an_exact_position(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = armed(monkeypatch, tmp_path, {"kind": "script", "tokens": [11, 22], "prompt_tokens": 5})
    found = [int(run(model, row)[0].argmax()) for row in (([1, 2], 0, 0), ([1, 2], 2, 0), ([3], 4, 0), ([11], 5, 0))]
    assert found[2:] == [11, 22]
    assert found[1] != 11


def in_a_child(tmp_path: Path, fault: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, numpy as np, qbruntime as q; model = q.load(sys.argv[1]);"
        "[model.infer(np.ones((1, 1, 1, 32), np.float32), None, n) for n in range(3)]; print('survived')"
    )
    env = {
        "PYTHONPATH": str(site_path()), "MBLT_EMULATOR_MODE": "latency", "MBLT_EMULATOR_PROFILE": "seed-0ms",
        "MBLT_EMULATOR_RUN_DIR": str(tmp_path / "run"), "MBLT_EMULATOR_FAULTS": json.dumps(fault),
    }  # fmt: skip
    command = [sys.executable, "-c", code, artefact(tmp_path)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_abort_ends_the_process_and_its_counters_are_cleared_away(tmp_path: Path) -> None:
    done = in_a_child(tmp_path, {"kind": "abort", "at_call": 2, "exit_code": None})
    assert done.returncode == -signal.SIGABRT
    assert "survived" not in done.stdout
    assert in_a_child(tmp_path, {"kind": "abort", "exit_code": 7}).returncode == 7
    assert len(list((tmp_path / "run").glob("*.stats"))) == 1, "the second process cleared away the first one's"
    assert read_stats() == []
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "explode"},
        {},
        {"kind": "raise"},
        {"kind": "raise", "status": "Model_Sad"},
        {"kind": "hang", "seconds": "2"},
        {"kind": "hang", "seconds": True},
        {"kind": "slow", "factor": 2, "color": 1},
        {"kind": "drop_append", "at_call": "3"},
        {"kind": "drop_append", "times": -1},
        {"kind": "script", "tokens": ["a"]},
    ],
)
def test_a_senseless_fault_is_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="fault"):
        parse_fault(fault)
    with pytest.raises(ConfigError, match="fault"):
        inject(os.getpid(), fault)


def test_there_must_be_such_a_process() -> None:
    with pytest.raises(ConfigError, match="no process"):
        inject(2**22 + 1, {"kind": "drop_append"})
