"""The command line: wrong calls are one line and exit code 2."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from triton_mblt import __version__
from triton_mblt.cli import main


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "triton_mblt", "--version"],
        env={"PYTHONPATH": str(Path(__file__).parents[3] / "backend_src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"triton-mblt {__version__}\n"


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a wrong call prints."""
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_the_doctor_needs_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    assert "NPU" in capsys.readouterr().out


def test_serve_never_chooses_the_npu_silently() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve"])
    assert caught.value.code == 2


def test_a_device_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model" in error_of(capsys, "serve", "--npu", "device")


def test_a_model_that_is_no_folder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/such/folder" in error_of(capsys, "serve", "--npu", "emulated", "--model", "/no/such/folder")


def test_the_environments_model_counts_for_serve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It reaches the models whatever the launcher says, so the launcher must know it (and show it)."""
    monkeypatch.setenv("MBLT_MODEL", "/no/such/folder")
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = ["--repository", str(tmp_path), "--http-port", str(server.getsockname()[1])]
        assert "/no/such/folder" in error_of(capsys, "serve", "--npu", "emulated", *arguments)


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        arguments = ["--repository", str(tmp_path), "--http-port", port]
        line = error_of(capsys, "serve", "--npu", "emulated", *arguments)
    assert f"port {port}" in line
    assert "HTTP_PORT" in line


def test_equal_ports_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--repository", str(tmp_path), "--http-port", "8001"]
    assert "differ" in error_of(capsys, "serve", "--npu", "emulated", *arguments)


@pytest.mark.parametrize("fault", ["not json", "[1]"])
def test_a_fault_must_be_a_json_object(capsys: pytest.CaptureFixture[str], fault: str) -> None:
    assert "JSON" in error_of(capsys, "emulate", "fault", "--pid", "1", fault)
