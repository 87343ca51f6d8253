"""The parts of a run that are values and files: backend directory, command line, run folder, log filter, settings."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from triton_mblt.core.errors import ConfigError, ErrorInfo, format_error
from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.launcher import rundir
from triton_mblt.launcher.backend_dir import assemble, find_embedded_server, shared_libpython
from triton_mblt.launcher.command import RESTRICTED, command_line, environment
from triton_mblt.launcher.logs import ServerLog


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that the code under test takes for the system's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_backend_directory_has_the_stub_of_this_python(tmp_path: Path) -> None:
    backends, library = assemble(find_embedded_server(), tmp_path)
    assert (backends / "python" / "libtriton_python.so").is_file()
    assert (backends / "python" / "triton_python_backend_utils.py").is_file()
    stub = (backends / "python" / "triton_python_backend_stub").resolve()
    assert stub.parent.name == f"{sys.version_info.major}.{sys.version_info.minor}"
    libpython = shared_libpython()
    assert [entry.resolve() for entry in library.iterdir()] == ([libpython.resolve()] if libpython else [])


def test_a_missing_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nvidia-pytriton"):
        find_embedded_server([tmp_path])


def test_a_missing_stub_names_the_python_version(tmp_path: Path) -> None:
    binary = tmp_path / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    binary.touch()
    with pytest.raises(ConfigError, match=r"no stub for Python 3\.1"):
        find_embedded_server([tmp_path])


def settings(**changes: object) -> ServerSettings:
    return ServerSettings(**{"repository": Path("/repository"), "npu": "emulated", **changes})  # type: ignore[arg-type]


def test_the_server_is_closed_by_default(temp: Path) -> None:
    run = rundir.create()
    command = command_line(find_embedded_server(), settings(), run, temp)
    for option in ("http", "grpc", "metrics"):
        assert f"--{option}-address=127.0.0.1" in command
    (http,) = [part for part in command if part.startswith("--http-restricted-api=")]
    (grpc,) = [part for part in command if part.startswith("--grpc-restricted-protocol=")]
    assert http.split("=", 1)[1] == grpc.split("=", 1)[1]
    assert set(RESTRICTED) <= set(http.split("=", 1)[1].split(":")[0].split(","))
    assert http.endswith("=" + run.route_key)
    assert not any(run.admin_key in part for part in command)


def test_children_get_the_paths_and_the_kind_of_npu_but_no_key(temp: Path) -> None:
    run = rundir.create()
    base = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "KEPT": "yes"}
    env = environment(find_embedded_server(), settings(model="/some/model"), run, temp / "lib", base)
    assert env["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert env["LD_LIBRARY_PATH"].split(":")[0] == str(temp / "lib")
    assert env["LD_LIBRARY_PATH"].split(":")[-1] == "/opt/lib"
    assert (env["MBLT_NPU"], env["MBLT_MODEL"], env["KEPT"]) == ("emulated", "/some/model", "yes")
    assert env["MBLT_ADMIN_KEY_FILE"] == str(run.admin_key_file)
    assert run.admin_key not in env.values()
    assert run.route_key not in env.values()


def test_keys_are_for_the_owner_only_and_differ(temp: Path) -> None:
    run = rundir.create()
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    for file in (run.route_key_file, run.admin_key_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run.route_key != run.admin_key
    assert rundir.find() == [run]


def test_a_link_to_a_run_folder_is_not_one(temp: Path) -> None:
    run = rundir.create()
    (temp / "triton-mblt-*-x").symlink_to(run.path)  # a sweep of it would take the shared memory of living servers
    assert rundir.find() == [run]
    assert rundir.sweep() == 0


def test_the_sweep_takes_what_dead_launchers_left_and_nothing_else(temp: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    mine = rundir.create()
    dead = rundir.create()
    dead.path.rename(temp / f"triton-mblt-{ended.pid}-x")
    dead = rundir.RunDir(temp / f"triton-mblt-{ended.pid}-x", dead.route_key, dead.admin_key)
    shm = [Path("/dev/shm") / (run.shm_prefix + "region") for run in (mine, dead)]
    try:
        for entry in shm:
            entry.write_bytes(b"x")
        assert rundir.sweep() == 1
        assert (mine.path.exists(), dead.path.exists()) == (True, False)
        assert [entry.exists() for entry in shm] == [True, False]
        mine.remove()
        assert (mine.path.exists(), shm[0].exists()) == (False, False)
    finally:
        for entry in shm:
            entry.unlink(missing_ok=True)


NOISE = [
    'W1130 12:54:21.130217 8508 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, ..."',
    'E1130 12:54:21.130365 8508 server.cc:241] "CudaDriverHelper has not been initialized."',
    "Error: Failed to initialize NVML",
    'W1130 12:54:22.531045 8508 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
    'I1130 12:54:21.132112 8508 model_lifecycle.cc:472] "loading: echo:1"',
    "I1130 12:54:22.529632 8508 server.cc:604] ",
    "+-------+---------+--------+",
    "| echo  | 1       | READY  |",
    "",
]


def test_the_log_hides_what_every_machine_without_a_gpu_prints_and_nothing_else() -> None:
    log = ServerLog(verbose=False)
    assert [line for line in NOISE if log.shown(line) is not None] == []
    kept = ['E1130 12:54:21.1 8 model.cc:1] "something broke"', "W1130 12:54:21.1 8 x.cc:1] hm", "print of a model"]
    assert [log.shown(line) for line in kept] == kept
    loaded = log.shown("I1130 12:54:22.529535 8508 model_lifecycle.cc:839] \"successfully loaded 'echo'\"")
    assert loaded == "  model echo is loaded"
    assert [ServerLog(verbose=True).shown(line) for line in NOISE] == NOISE


def test_complaints_about_being_stopped_are_hidden_only_while_stopping() -> None:
    line, log = "Signal (15) received.", ServerLog(verbose=False)
    assert log.shown(line) == line
    log.stopping()
    assert log.shown(line) is None


def test_a_failed_model_is_remembered_with_its_cause_alone() -> None:
    log = ServerLog(verbose=False)
    ours = format_error(ErrorInfo(code="INVALID_ARG", message="no such model folder", param="model"))
    log.shown(
        "E1130 12:54:22.5 8 model_lifecycle.cc:642] \"failed to load 'lm' version 1: Internal: ConfigError: "
        + ours
        + '\\n\\nAt:\\n  model.py(12): initialize\\n"'
    )
    assert list(log.failures) == ["lm"]
    assert log.failures["lm"].endswith("no such model folder")


@pytest.mark.parametrize("changes", [{"http_port": 0}, {"grpc_port": 70000}, {"http_port": 8001}, {"stop_limit_s": 0}])
def test_settings_that_cannot_work_name_the_field(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**changes)
    assert caught.value.param in {*changes, "http_port"}


def test_the_run_folder_is_recognised_by_the_pid_in_its_name(temp: Path) -> None:
    run = rundir.create()
    assert run.path.name.split("-")[2] == str(os.getpid())
    assert rundir.is_alive(run)
