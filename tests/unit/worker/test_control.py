"""lm_control's way to the LM: verbs, keys, stale sockets, several models and reloads in one server."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from triton_mblt.core.control_path import private_folder, socket_path
from triton_mblt.core.errors import ConfigError, InvalidRequest, NotFound, PermissionDenied
from triton_mblt.core.request import SequenceKey
from triton_mblt.worker.control import ControlServer, call

SERVER = 4242


class FakeService:
    """Answers by hand and notes what it was asked."""

    def __init__(self, name: str = "one") -> None:
        self.name = name
        self.asked: list[Any] = []

    def abort(self, key: SequenceKey | None, request_id: str, abort_token: str) -> bool:
        self.asked.append((key, request_id, abort_token))
        if key is None and request_id == "":
            raise InvalidRequest("name the sequence or the request id", param="sequence_id")
        return abort_token == "right"

    def renew(self, key: SequenceKey | None, request_id: str, abort_token: str, lease_s: float) -> bool:
        self.asked.append((key, request_id, abort_token, lease_s))
        return True

    def stats(self) -> dict[str, Any]:
        return {"name": self.name}

    def drain(self, limit_s: float) -> None:
        self.asked.append(("drain", limit_s))


@pytest.fixture(autouse=True)
def _sockets_of_this_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = tempfile.mkdtemp(prefix="c-")  # pytest's own folder may be too long for a unix socket
    monkeypatch.setattr(tempfile, "tempdir", short)


@pytest.fixture
def service():
    service = FakeService()
    server = ControlServer(service, "lm", "the-key", server_pid=SERVER)
    server.start()
    yield service
    server.close()


def ask(verb: str, name: str = "lm", **fields: Any) -> dict[str, Any]:
    return call(name, {"verb": verb, **fields}, server_pid=SERVER)


def test_abort_and_renew_tell_number_and_text_apart(service: FakeService) -> None:
    assert ask("abort", sequence_id=5, request_id="r", abort_token="right") == {"aborted": True}
    assert ask("abort", sequence_id="5", abort_token="wrong") == {"aborted": False}
    assert ask("renew", sequence_id="5", abort_token="right", lease_s=2.5) == {"renewed": True}
    assert service.asked == [
        (SequenceKey("int", "5"), "r", "right"),
        (SequenceKey("str", "5"), "", "wrong"),
        (SequenceKey("str", "5"), "", "right", 2.5),
    ]


def test_the_services_refusal_comes_back_as_its_type(service: FakeService) -> None:
    with pytest.raises(InvalidRequest, match="name the sequence") as caught:
        ask("abort")
    assert caught.value.param == "sequence_id"


@pytest.mark.parametrize("key", ["", "wrong", "the-key2"])
def test_drain_needs_the_admin_key(service: FakeService, key: str) -> None:
    with pytest.raises(PermissionDenied):
        ask("drain", admin_key=key)
    assert service.asked == []
    assert ask("drain", admin_key="the-key") == {"draining": True}
    assert ask("drain", admin_key="the-key", limit_s=1.5) == {"draining": True}
    assert service.asked == [("drain", 0.0), ("drain", 1.5)]


def test_without_a_configured_key_nobody_may_drain() -> None:
    server = ControlServer(FakeService(), "open", "", server_pid=SERVER)
    server.start()
    with pytest.raises(PermissionDenied):
        ask("drain", "open", admin_key="")
    server.close()


@pytest.mark.parametrize(
    "request_", [{"verb": "reboot"}, {}, {"verb": "stats", "extra": 1}, {"verb": "abort", "sequence_id": []}]
)
def test_bad_requests_are_answered(service: FakeService, request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="bad control request"):
        call("lm", request_, server_pid=SERVER)


@pytest.mark.parametrize("line", [b"{\n", b"\xff\xfe\n", b"[1]\n", b"x" * 2_000_000 + b"\n"])
def test_garbage_on_the_socket_leaves_the_server_well(service: FakeService, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(socket_path("lm", SERVER)))
        try:
            sock.sendall(line)
            assert b"INVALID_ARG" in sock.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert ask("stats") == {"name": "one"}


def test_a_name_that_nobody_serves_is_not_found(service: FakeService) -> None:
    with pytest.raises(NotFound, match="'other'"):
        ask("stats", "other")
    with pytest.raises(NotFound):
        call("lm", {"verb": "stats"}, server_pid=SERVER + 1)


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path("lm", SERVER)))
        listener.listen()

        def half() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b'{"result":')

        threading.Thread(target=half, daemon=True).start()
        with pytest.raises(NotFound, match="ended before"):
            ask("stats")


def test_a_process_without_file_descriptors_finds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(NotFound, match="Too many open files"):
        ask("stats")


def test_models_of_one_server_are_told_apart_by_name() -> None:
    names = ["a/b", "a-b", "a" * 300, "a" * 299 + "b", "모델"]
    servers = [ControlServer(FakeService(name), name, "", server_pid=SERVER) for name in names]
    for server in servers:
        server.start()
    assert [ask("stats", name)["name"] for name in names] == names
    for server in servers:
        server.close()
    assert list(private_folder().iterdir()) == []


def test_a_temporary_folder_with_a_long_name_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server = ControlServer(FakeService(), "lm", "", server_pid=SERVER)
    with pytest.raises(ConfigError, match="too long") as caught:
        server.start()
    assert caught.value.param == "TMPDIR"
    server.close()


def test_a_stale_socket_is_replaced() -> None:
    path = socket_path("lm", SERVER)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = ControlServer(FakeService("new"), "lm", "", server_pid=SERVER)
    server.start()
    assert ask("stats") == {"name": "new"}
    server.close()
    assert not path.exists()


def test_a_reload_takes_over_and_the_old_one_does_not_remove_it() -> None:
    old = ControlServer(FakeService("old"), "lm", "", server_pid=SERVER)
    new = ControlServer(FakeService("new"), "lm", "", server_pid=SERVER)
    old.start()
    new.start()
    old.close()
    assert ask("stats") == {"name": "new"}
    new.close()


def test_the_folder_is_private_and_a_foreign_one_is_refused(service: FakeService) -> None:
    folder = private_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with pytest.raises(PermissionDenied):
        ask("stats")
    folder.chmod(0o700)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    Path(tempfile.gettempdir(), f"triton-mblt-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(PermissionDenied):
        private_folder()
