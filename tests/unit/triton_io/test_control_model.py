"""lm_control's own door: what never reaches the LM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from triton_python_backend_utils import Request

from triton_mblt.core.errors import parse_error
from triton_mblt.triton_io.control_model import ControlModel


@pytest.mark.parametrize("text", ["{", "[]", '{"a":' + "[" * 200_000])
def test_a_broken_request_is_named(tmp_path: Path, text: str) -> None:
    model_json = tmp_path / "lm" / "1" / "model.json"
    model_json.parent.mkdir(parents=True)
    model_json.write_text(json.dumps({"model": "m", "npu": "emulated"}))
    model = ControlModel()
    model.initialize({"model_config": "{}", "model_name": "c", "model_repository": str(tmp_path / "c")})
    (answer,) = model.execute([Request({"request": text})])
    info = parse_error(answer.error().message())
    assert info is not None
    assert (info.code, info.param) == ("INVALID_ARG", "request")
