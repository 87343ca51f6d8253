"""The configurations of the model repository agree with each other and with the code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from triton_mblt.core.settings import load_settings
from triton_mblt.triton_io.options import PACKED, Options

REPOSITORY = Path(__file__).parents[3] / "model_repository"
MODELS = ("tokenizer", "vision_encoder", "lm", "lm_control", "mblt_ensemble", "mblt")


def config(model: str) -> str:
    return (REPOSITORY / model / "config.pbtxt").read_text()


def tensors(model: str, kind: str) -> dict[str, str]:
    """Name -> the rest of the declaration, of the block `input` or `output`."""
    block = re.search(rf"^{kind} \[\n(.*?)^\]", config(model), re.MULTILINE | re.DOTALL)
    assert block is not None
    return dict(re.findall(r'name: "(\w+)" (.*) }', block[1]))


@pytest.mark.parametrize("model", MODELS)
def test_no_model_is_batched_by_triton(model: str) -> None:
    assert "max_batch_size: 0" in config(model)
    assert "CORRID" not in config(model).replace("No CORRID", "")


def test_the_fronts_and_the_tokenizer_take_the_same_inputs() -> None:
    assert tensors("mblt", "input") == tensors("mblt_ensemble", "input") == tensors("tokenizer", "input")


def test_the_fronts_give_what_the_lm_gives() -> None:
    assert tensors("mblt", "output") == tensors("mblt_ensemble", "output") == tensors("lm", "output")


def test_every_option_is_an_input_of_the_lm_too() -> None:
    options = {field.name for field in msgspec.structs.fields(Options)} - {"error"}
    assert options <= tensors("tokenizer", "input").keys()
    assert options <= tensors("lm", "input").keys()
    assert PACKED in tensors("lm", "input")


def test_the_ensemble_maps_everything() -> None:
    tokenizer, lm = config("mblt_ensemble").split('model_name: "lm"')
    mapped = re.findall(r'(input|output)_map { key: "(\w+)" value: "(\w+)" }', tokenizer)
    assert {name for kind, name, _ in mapped if kind == "input"} == tensors("tokenizer", "input").keys()
    handed = {name for kind, name, _ in mapped if kind == "output"}
    assert handed == tensors("tokenizer", "output").keys()
    mapped = re.findall(r'(input|output)_map { key: "(\w+)" value: "(\w+)" }', lm)
    assert {name for kind, name, _ in mapped if kind == "input"} == handed
    assert {name for kind, name, _ in mapped if kind == "output"} == tensors("lm", "output").keys()


def test_the_batcher_waits_twice_as_long_as_the_lm() -> None:
    settings = load_settings(REPOSITORY / "lm" / "1" / "model.json", {})
    idle = re.search(r"max_sequence_idle_microseconds: (\d+)", config("lm"))
    assert idle is not None
    assert int(idle[1]) == 2 * settings.sequence_idle_s * 1e6


@pytest.mark.parametrize("model", [name for name in MODELS if name != "mblt_ensemble"])
def test_model_files_are_short(model: str) -> None:
    assert len((REPOSITORY / model / "1" / "model.py").read_text().splitlines()) < 20
