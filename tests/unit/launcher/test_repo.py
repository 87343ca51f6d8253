"""Repositories for other models: a copy of the shipped one with settings of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from triton_mblt.cli import main
from triton_mblt.core.errors import ConfigError
from triton_mblt.core.settings import load_settings
from triton_mblt.launcher.repo import MODEL_JSON, create, parse_pairs, resolve_model, shipped_repository


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    folder.mkdir()
    return folder


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_created_repository_has_all_files_and_names_the_model(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "repository"
    create(str(model), out, name="mine", settings={"max_queue": "7", "npu": "device"})
    assert files(out) == files(shipped_repository())
    assert not list(out.rglob("__pycache__"))
    written = json.loads((out / MODEL_JSON).read_text())
    assert written == {"model": str(model), "npu": "device", "served_name": "mine", "max_queue": 7}
    assert load_settings(out / MODEL_JSON, {}).name == "mine"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*/file/out") as caught:
        create(str(model), tmp_path / "file" / "out")
    assert caught.value.param == "out"


def test_tritons_idle_limit_is_twice_ours(tmp_path: Path, model: Path) -> None:
    create(str(model), tmp_path / "out", settings={"sequence_idle_s": "90"})
    limits = {
        config.parent.name: found[1]
        for config in (tmp_path / "out").glob("*/config.pbtxt")
        if (found := re.search(r"max_sequence_idle_microseconds: (\d+)", config.read_text()))
    }
    assert limits
    assert set(limits.values()) == {"180000000"}


def test_the_shipped_idle_limit_follows_the_same_rule() -> None:
    shipped = shipped_repository()
    found = re.search(r"max_sequence_idle_microseconds: (\d+)", (shipped / "lm" / "config.pbtxt").read_text())
    assert found is not None
    assert int(found[1]) == 2e6 * load_settings(shipped / MODEL_JSON, {}).sequence_idle_s


@pytest.mark.parametrize(
    ("settings", "param"), [({"max_queue": "0"}, "max_queue"), ({"mx_queue": "1"}, "mx_queue"), ({"npu": "gpu"}, "npu")]
)
def test_a_wrong_setting_is_named_and_nothing_is_written(
    tmp_path: Path, model: Path, settings: dict[str, str], param: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        create(str(model), tmp_path / "out", settings=settings)
    assert caught.value.param == param
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path, model: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(ConfigError, match="exists"):
        create(str(model), tmp_path)
    assert (tmp_path / "kept").exists()


def test_a_model_is_a_folder_or_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model(model.name) == str(model)
    assert resolve_model("mobilint/Llama-3.2-1B-Instruct") == "mobilint/Llama-3.2-1B-Instruct"
    for wrong in ("nothing", "/no/such/folder", "a/b/c", ""):
        with pytest.raises(ConfigError):
            resolve_model(wrong or "no folder")


def test_settings_are_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1", "model=x"):
        with pytest.raises(ConfigError):
            parse_pairs([wrong])


def test_the_command_writes_it(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["repo", "create", "--model", str(model), "--out", str(out), "npu=emulated", "max_queue=3"]) == 0
    assert str(model) in capsys.readouterr().out
    assert load_settings(out / MODEL_JSON, {}).max_queue == 3
