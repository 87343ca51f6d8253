"""How a worker is started: which Python, which environment, and what others can see of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from lm_service import fake_settings, running

from triton_mblt.core.errors import ConfigError
from triton_mblt.worker import process

SITE = str(Path(process.__file__).parents[1] / "emulator" / "site")


def test_the_emulator_comes_first_for_an_emulated_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["other", SITE]))
    parts = process.worker_environment(fake_settings(npu="emulated"))["PYTHONPATH"].split(os.pathsep)
    assert parts[0] == SITE
    assert parts.count(SITE) == 1
    assert "other" in parts


def test_no_emulator_for_a_device_even_when_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SITE, "other"]))
    parts = process.worker_environment(fake_settings(npu="device"))["PYTHONPATH"].split(os.pathsep)
    assert SITE not in parts
    assert "other" in parts


def test_python_is_found_without_a_useful_sys_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    path = process.worker_environment(fake_settings())["PYTHONPATH"]
    for useless in ("", "/opt/tritonserver/backends/python/triton_python_backend_stub"):
        process.find_python.cache_clear()
        monkeypatch.setattr(sys, "executable", useless)
        assert Path(process.find_python(path)).name.startswith("python")
    process.find_python.cache_clear()


def test_a_missing_python_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process.find_python.cache_clear()
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with pytest.raises(ConfigError, match="no Python"):
        process.find_python("")


def test_settings_do_not_show_in_the_process_list() -> None:
    with running(fake_settings(served_name="a-secret-name")) as service:
        pid = service.stats()["workers"][0]["pid"]
        assert b"a-secret-name" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert Path(f"/proc/{pid}/comm").read_text().strip() == "mblt-worker-0"


def test_a_stub_imports_no_heavy_library() -> None:
    """Every import costs each stub time and memory (torch alone 222 MB)."""
    code = "import sys, triton_mblt.worker.service, triton_mblt.worker.control; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])}
    done = process.subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "torch",
        "transformers",
        "tokenizers",
        "qbruntime",
        "PIL",
        "cv2",
        "scipy",
        "jinja2",
        "pydantic",
    }
    assert "msgspec" in loaded
