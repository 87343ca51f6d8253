"""Devices, files and core modes of the emulated runtime: what opens, what is refused and under which name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from twin import artefact, configure, forget, refused

from triton_mblt.emulator import site_path
from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime._options import OptionError, parse


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run")
    yield
    forget()


def devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugged: str) -> None:
    configure(monkeypatch, tmp_path / "run", DEVICES=plugged)


def core(cluster: int, number: int) -> q.CoreId:
    return q.CoreId(q.Cluster[f"Cluster{cluster}"], q.Core[f"Core{number}"])


def test_one_device_by_default() -> None:
    assert q.get_available_devices() == ["aries-rb"]
    assert q.get_available_device_numbers("ARIES") == [0]
    for accelerator in (q.Accelerator(), q.Accelerator(0), q.Accelerator("Aries"), q.Accelerator("aries-rb", 0)):
        assert accelerator.get_device_name() == "aries-rb"
    with refused("Acc_DeviceNotFound"):
        q.Accelerator(1)
    with refused("Driver_NotInitialized"):
        q.Accelerator("aries-rb", 1)
    with refused("Driver_NotInitialized"):
        q.Accelerator("regulus-ra")
    with refused("NotImplemented"):
        q.Accelerator().allocate_pinned_memory((1,), "float32")  # type: ignore[arg-type]


def test_several_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices(monkeypatch, tmp_path, "aries-rb:2,regulus-ra:1,regulus-rb:1")
    assert q.get_available_devices() == ["aries-rb", "regulus-ra", "regulus-rb"]
    assert q.get_available_device_numbers("aries") == [0, 1]
    assert q.get_available_device_numbers() == q.get_available_device_numbers("regulus") == []
    assert q.Accelerator("aries", 1).get_device_name() == "aries-rb"
    for ambiguous in ("auto", "regulus"):
        with refused("Acc_AmbiguousDevice"):
            q.Accelerator(ambiguous)
    with refused("Acc_UnknownDevice"):
        q.Accelerator("ares")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODE", "fast"),
        ("LOGITS", "round"),
        ("DEVICES", "many"),
        ("DEVICES", "-1"),
        ("DEVICES", "aries-rb:1,2"),
        ("DEVICES", "card:1"),
    ],
)
def test_senseless_options_are_named(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"MBLT_EMULATOR_{name}"):
        parse({f"MBLT_EMULATOR_{name}": value})


def test_default_options_need_nothing() -> None:
    found = parse({})
    assert (found.mode, found.computes, found.paces, found.profile) == ("compute", True, False, "seed")
    assert found.devices == (("aries-rb", 1),)
    assert not str(found.run_dir).startswith("/dev/shm")


def test_bad_files_do_not_load(tmp_path: Path) -> None:
    good = Path(artefact(tmp_path)).read_bytes()
    for number, content in enumerate([b"", b"no model", good[:100], good[:-1], good[:70] + b"?" + good[71:]]):
        path = tmp_path / f"bad{number}.mxq"
        path.write_bytes(content)
        with refused("Model_FailedToLoadMXQ"):
            q.Model(str(path))
        assert q.get_model_summary(str(path)) == ""
    for path in (tmp_path, tmp_path / "missing"):
        with refused("Model_FailedToLoadMXQ"):
            q.Model(str(path))
    with pytest.raises(TypeError):
        q.Model(tmp_path)  # type: ignore[arg-type]


def test_summary_names_what_matters(tmp_path: Path) -> None:
    summary = q.get_model_summary(artefact(tmp_path, batch=4))
    for part in ("llama", "Rows: 4", "(1, -1, 32)", "(1, -1, 97)"):
        assert part in summary


def config(mode: str, *arguments: Any) -> q.ModelConfig:
    made = q.ModelConfig()
    assert getattr(made, f"set_{mode}_core_mode")(*arguments)
    return made


def test_a_model_of_one_slot_takes_one_core_in_single_mode(tmp_path: Path) -> None:
    path = artefact(tmp_path)
    for allowed in (config("single", [core(1, 2)]), config("auto"), config("global4"), config("global8")):
        q.Model(path, allowed)
    for wrong in (
        config("single", [core(0, 0), core(0, 1)]),
        config("single", 8),
        config("multi"),
        config("global", [q.Cluster.Cluster0]),
    ):
        with refused("Model_MXQAndModelConfigNotMatch"):
            q.Model(path, wrong)
    bundle = config("auto")
    bundle.force_single_npu_bundle(1)
    with refused("Model_MXQAndModelConfigNotMatch"):
        q.Model(path, bundle)


def test_a_batch_model_takes_auto_or_single(tmp_path: Path) -> None:
    path = artefact(tmp_path, batch=4)
    for allowed in (config("single", [core(0, 0), core(0, 1)]), config("auto")):
        q.Model(path, allowed)
    for wrong in (config("global4"), config("global8"), config("multi")):
        with refused("Model_MXQAndModelConfigNotMatch"):
            q.Model(path, wrong)


def test_a_model_keeps_the_config_it_was_made_with(tmp_path: Path) -> None:
    given = config("single", [core(0, 1)])
    model = q.Model(artefact(tmp_path), given)
    given.set_global8_core_mode()
    assert model.get_core_mode() is q.CoreMode.Single


def test_target_cores(tmp_path: Path) -> None:
    path = artefact(tmp_path)
    single = q.Model(path, config("single", [core(1, 2)]))
    assert single.get_target_cores() == single.target_cores == [core(1, 2)]
    assert single.is_target(core(1, 2))
    assert not single.is_target(core(0, 2))
    assert single.get_core_mode() is q.CoreMode.Single
    assert len(q.Model(path).get_target_cores()) == len(q.Model(path, config("global8")).get_target_cores()) == 8
    assert q.Model(path, config("global4", [q.Cluster.Cluster1])).get_target_cores() == [core(1, n) for n in range(4)]


def test_regulus_has_one_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices(monkeypatch, tmp_path, "regulus-ra:1")
    path, accelerator = artefact(tmp_path), q.Accelerator()
    for allowed in (config("auto"), config("single", [core(0, 0)])):
        q.Model(path, allowed).launch(accelerator)
    for wrong in (config("single", [core(0, 1)]), config("global4")):
        with refused("Model_IsNotSupportedHardware"):
            q.Model(path, wrong).launch(accelerator)


def test_a_core_id_is_not_hashable_and_sorts() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(core(0, 0))
    assert sorted([core(1, 0), core(0, 3), core(0, 1)]) == [core(0, 1), core(0, 3), core(1, 0)]


def test_what_language_models_lack_is_there_by_name(tmp_path: Path) -> None:
    model = q.load(artefact(tmp_path))
    for use in (
        model.infer_speedrun,
        lambda: model.infer_async([]),
        lambda: model.infer_npu_data([]),
        model.acquire_input_buffer,
    ):
        with refused("NotImplemented"):
            use()
    with refused("Future_NotValid"):
        q.Future().get()


def test_the_drop_in_stands_alone(tmp_path: Path) -> None:
    """It imports neither torch nor anything of ours, and shadows the real module when its folder comes first."""
    check = (
        "import sys, qbruntime; loaded = set(sys.modules); "
        "assert qbruntime.__file__.startswith(sys.argv[1]), qbruntime.__file__; "
        "assert not loaded & {'torch', 'transformers', 'triton_mblt'}, loaded; "
        "model = qbruntime.load(sys.argv[2]); assert 'torch' not in sys.modules"
    )
    env = {"PYTHONPATH": str(site_path()), "MBLT_EMULATOR_MODE": "latency", "MBLT_EMULATOR_RUN_DIR": str(tmp_path)}
    path = artefact(tmp_path)
    subprocess.run([sys.executable, "-c", check, str(site_path()), path], env=env, check=True, timeout=60)
    assert not list(tmp_path.glob("*.stats")), "the counters go with the process"
