"""The repository under a tritonserver of the user's own: no launcher, the code found beside it, several deployments in
one repository, and packages that cannot be loaded, each with its reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lm_control import Control
from triton_calls import Stream
from triton_server import TritonServer, plain_triton

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def own_server(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    home = tmp_path_factory.mktemp("home")
    repository = home / "model_repository"
    shutil.copytree(ROOT / "model_repository", repository, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "backend_src").symlink_to(ROOT / "backend_src")
    name_model(repository / "lm", package)
    for name, folder in bad_packages(package, home).items():
        shutil.copytree(repository / "lm", repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace('string_value: "lm"', f'string_value: "{name}"'))
        name_model(repository / name, folder)
    folder = tmp_path_factory.mktemp("own")
    options = ("--strict-readiness=false", "--exit-on-error=false", "--exit-timeout-secs=2")
    (home / "admin.key").write_text("open sesame\n")
    limits = {"MBLT_BLS_THREADS": "2", "MBLT_MAX_QUEUE": "3"}
    with plain_triton(repository, folder, *options, MBLT_ADMIN_KEY_FILE=str(home / "admin.key"), **limits) as running:
        yield running


def name_model(lm: Path, folder: Path) -> None:
    (lm / "1" / "model.json").write_text(json.dumps({"model": str(folder), "npu": "emulated"}))


def bad_packages(good: Path, home: Path) -> dict[str, Path]:
    """By the name of the model that is to load it."""
    made = {"lm_unknown": home / "nowhere"}
    for name in ("lm_corrupt", "lm_foreign", "lm_bare"):
        made[name] = Path(shutil.copytree(good, home / name))
    artefact = next(made["lm_corrupt"].glob("*.mxq"))
    artefact.write_bytes(artefact.read_bytes()[:-1000])
    next(made["lm_foreign"].glob("*.mxq")).write_bytes(b"\x7fMXQ of the hardware's compiler" * 100)
    (made["lm_bare"] / "tokenizer.json").unlink()
    return made


def states(server: TritonServer) -> dict[str, tuple[str, str]]:
    status, text = server.post("/v2/repository/index", {})
    assert status == 200
    return {one["name"]: (one.get("state", ""), one.get("reason", "")) for one in json.loads(text)}


def test_the_good_deployment_serves(own_server: TritonServer) -> None:
    with Stream(own_server.grpc) as stream:
        front = stream.ask("mblt", text="hello", sampling={"max_tokens": 3, "temperature": 0})
        ensemble = stream.ask("mblt_ensemble", text="hello", sampling={"max_tokens": 3, "temperature": 0}, sequence=1)
    assert (front.error, front.finals) == ("", 1)
    assert front.text == ensemble.text


@pytest.mark.parametrize(
    ("model", "reason", "logged"),
    [
        ("lm_unknown", "nowhere' does not exist", ""),
        ("lm_corrupt", "refuses the MXQ", "where its header asks for"),
        ("lm_foreign", "refuses the MXQ", "is not an artefact of the emulated NPU"),
        ("lm_bare", "has no tokenizer.json", ""),
    ],
)
def test_a_package_that_cannot_be_loaded_says_why(
    own_server: TritonServer, model: str, reason: str, logged: str
) -> None:
    """The runtime, like the vendor's, gives a status name only; its reason in plain words is in the log."""
    state, said = states(own_server)[model]
    assert state == "UNAVAILABLE"
    assert reason in said
    assert logged in own_server.log()


def test_the_front_queues_and_then_refuses(own_server: TritonServer) -> None:
    """Two threads and a queue of three: of eight at once three are refused, and the others are answered."""
    control = Control(own_server)
    control.slow_down(0.05)
    with Stream(own_server.grpc) as stream:
        replies = [stream.send("mblt", text="hi", sampling={"max_tokens": 5, "ignore_eos": True}) for _ in range(8)]
        ends = [reply.wait() for reply in replies]
    control.back_to_speed()
    assert [reply.info.code for reply in ends if reply.error] == ["UNAVAILABLE"] * 3
    assert [reply.finals for reply in ends] == [1] * 8


def test_draining_refuses_new_requests_and_finishes_old_ones(own_server: TritonServer) -> None:
    """The last test on this server: there is no way back."""
    control = Control(own_server)
    control.slow_down(0.05)
    with Stream(own_server.grpc) as stream:
        old = stream.send("mblt", text="hi", sampling={"max_tokens": 20, "ignore_eos": True}, stream=True)
        old.wait_responses(1)
        assert control.call("drain", admin_key="open sesame") == {"draining": True}
        control.back_to_speed()
        for entry, place in (("mblt", {}), ("mblt_ensemble", {"sequence": 2})):
            refused = stream.ask(entry, text="hi", **place)
            assert (refused.info.code, refused.finals) == ("UNAVAILABLE", 1)
        assert (old.wait().error, old.finals) == ("", 1)
    assert control.stats()["draining"] is True
