"""The doctor: each fact judged on its own, the report readable, the exit code true."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_mblt.core.errors import ConfigError
from triton_mblt.launcher import checks, device_check, doctor
from triton_mblt.launcher.checks import Finding


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("version", "verdict"), [((3, 9), "missing"), ((3, 10), "ok"), ((3, 12), "ok"), ((3, 13), "missing")]
)
def test_python_versions(version: tuple[int, int], verdict: str) -> None:
    finding = checks.python_version(version)
    assert finding.verdict == verdict
    assert f"{version[0]}.{version[1]}" in finding.text


def test_a_taken_port_is_named(taken_port: int) -> None:
    finding = checks.port("HTTP_PORT", "127.0.0.1", taken_port)
    assert (finding.verdict, finding.subject) == ("missing", "HTTP_PORT")
    assert str(taken_port) in finding.text
    assert checks.port("HTTP_PORT", "127.0.0.1", free_port()).verdict == "ok"


def test_an_address_of_another_machine_is_not_called_taken() -> None:
    finding = checks.port("HTTP_PORT", "192.0.2.1", free_port())
    assert finding.verdict == "missing"
    assert "taken" not in finding.text
    assert "cannot be opened" in finding.text


def test_a_port_whose_connections_linger_is_free() -> None:
    """A port is free right after its server closed, though connections to it are in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the server's side closes first, so its side lingers
        client.close()
    assert checks.port_trouble("127.0.0.1", port) is None


@pytest.mark.parametrize(
    ("libc", "verdict", "word"),
    [
        (("", ""), "missing", "no glibc"),
        (("glibc", "2.31"), "missing", "2.35"),
        (("glibc", "2.36"), "note", "perf_analyzer"),
        (("glibc", "2.39"), "ok", "2.39"),
    ],
)
def test_a_wrong_glibc_is_told(libc: tuple[str, str], verdict: str, word: str) -> None:
    finding = checks.glibc(libc)
    assert finding.verdict == verdict
    assert word in finding.text


def test_numpy_2_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "2.4.1")
    finding = checks.numpy_version()
    assert finding.verdict == "missing"
    assert "0 bytes" in finding.text


def test_this_environment_has_what_serving_needs() -> None:
    findings = [checks.embedded_server(), checks.libpython(), checks.numpy_version(), *checks.packages()]
    assert [finding for finding in findings if finding.verdict == "missing"] == []


def test_too_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checks.shared_memory(tmp_path / "nothing").verdict == "missing"
    monkeypatch.setattr(checks, "_SHM_LEAST_MB", 10**12)
    finding = checks.shared_memory(tmp_path)
    assert finding.verdict == "missing"
    assert "MB free" in finding.text


def test_a_missing_server_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ConfigError("not installed")

    monkeypatch.setattr(checks, "find_embedded_server", missing)
    assert checks.embedded_server() == Finding("server", "missing", "not installed", "run `make setup`")


def test_the_runtime_is_asked_for_a_card() -> None:
    """The real runtime answers, whether or not this machine has a card."""
    finding = device_check.npu_device()
    assert "qbruntime v1" in finding.text
    assert finding.verdict in ("ok", "missing")


@pytest.mark.parametrize(
    ("devices", "reason", "word"),
    [
        ([], "Driver_NotInitialized", "driver"),
        ([], "Acc_DeviceNotFound", "no Mobilint card"),
        (["aries-rb:0"], "", "sees"),
    ],
)
def test_no_card_and_no_driver_are_told_apart(devices: list[str], reason: str, word: str) -> None:
    finding = device_check.judge({"devices": devices, "reason": reason, "version": "v1.5.0"})
    assert word in finding.text
    assert finding.verdict == ("ok" if devices else "missing")


def test_without_a_kind_of_npu_a_missing_card_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "npu_device", lambda: Finding("NPU", "missing", "no card", "plug it in"))
    assert doctor.examine(None, "127.0.0.1", {})[-1] == Finding("NPU", "note", "no card", "plug it in")
    assert doctor.examine("device", "127.0.0.1", {})[-1].verdict == "missing"


def test_the_report_shows_advice_and_the_exit_code_follows(capsys: pytest.CaptureFixture[str], taken_port: int) -> None:
    ports = {"http_port": taken_port, "grpc_port": free_port(), "metrics_port": free_port()}
    assert doctor.run("emulated", "127.0.0.1", ports) == 1
    printed = capsys.readouterr().out
    assert f"port {taken_port} on 127.0.0.1 is taken" in printed
    assert "-> stop what uses it" in printed
    assert "1 of" in printed.splitlines()[-1]


def test_a_note_alone_is_no_failure() -> None:
    text = doctor.report([Finding("glibc", "note", "old", "newer"), Finding("numpy", "ok", "1.26")])
    assert text.splitlines()[-1] == "nothing is missing"
