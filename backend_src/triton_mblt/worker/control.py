"""How `lm_control` reaches the LM's stub: one JSON line each way over a unix socket in a folder of this user's own.

The path is made of the Triton server's process id, which both stubs have as their parent, and the model's name, so
several LMs of one server and several servers of one user are told apart. Verbs: abort, renew, stats, drain (needs the
admin key).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
from typing import Any, Literal, Protocol

import msgspec

from triton_mblt.core.control_path import socket_path
from triton_mblt.core.errors import (
    ConfigError,
    ErrorInfo,
    InvalidRequest,
    MbltError,
    NotFound,
    PermissionDenied,
    error_of,
)
from triton_mblt.core.request import SequenceKey

_LONGEST_LINE = 1024 * 1024
_TALK_LIMIT_S = 10.0
_BACKLOG = 64
_ACCEPT_PAUSE_S = 0.1


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sequence_id` is the Triton correlation id: a number or a text (they differ), null for any."""

    verb: Literal["abort", "renew", "stats", "drain"]
    sequence_id: int | str | None = None
    request_id: str = ""
    abort_token: str = ""
    lease_s: float = 0.0
    limit_s: float = 0.0
    admin_key: str = ""

    def key(self) -> SequenceKey | None:
        return None if self.sequence_id is None else SequenceKey.of(self.sequence_id)


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    result: dict[str, Any] = {}
    error: ErrorInfo | None = None


class Controlled(Protocol):
    """What a control server needs of the service (worker/service.py:LmService)."""

    def abort(self, key: SequenceKey | None, request_id: str, abort_token: str) -> bool: ...
    def renew(self, key: SequenceKey | None, request_id: str, abort_token: str, lease_s: float) -> bool: ...
    def stats(self) -> dict[str, Any]: ...
    def drain(self, limit_s: float) -> None: ...


def call(name: str, request: dict[str, Any], *, server_pid: int | None = None) -> dict[str, Any]:
    """Ask the LM `name` of the same Triton server. Fields of `request`: see ControlRequest.

    Raises the error that the LM answers with, as its MbltError type (InvalidRequest, PermissionDenied), and NotFound
    when no such LM runs in this server.
    """
    try:
        path = socket_path(name, os.getppid() if server_pid is None else server_pid)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_TALK_LIMIT_S)
            sock.connect(str(path))
            sock.sendall(msgspec.json.encode(request) + b"\n")
            with sock.makefile("rb") as reader:
                line = reader.readline()
    except OSError as error:
        raise NotFound(f"the model {name!r} does not answer in this server: {error.strerror or error}") from error
    if not line.endswith(b"\n"):
        raise NotFound(f"the model {name!r} ended before it answered")
    answer = msgspec.json.decode(line, type=_Answer)
    if answer.error is not None:
        raise error_of(answer.error)
    return answer.result


class ControlServer:
    """Serves one LM's control socket on threads of its own. An empty `admin_key` refuses the verbs that need one."""

    def __init__(self, service: Controlled, name: str, admin_key: str, *, server_pid: int | None = None) -> None:
        self._service = service
        self._admin_key = admin_key.encode()
        self._path = socket_path(name, os.getppid() if server_pid is None else server_pid)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._accept, name="mblt-control", daemon=True)
        self._closing = threading.Event()
        self._inode = 0

    def start(self) -> None:
        """Bind and serve. A socket left by a dead stub is replaced, and so is one of a stub that is being reloaded.

        Raises ConfigError where there can be none, as in a temporary folder with a long name (107 bytes are the limit).
        """
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            fresh.unlink(missing_ok=True)
            self._listener.bind(str(fresh))
            self._listener.listen(_BACKLOG)
            self._inode = fresh.stat().st_ino
            fresh.replace(self._path)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"cannot make the control socket {self._path}: {why}", param="TMPDIR") from error
        self._thread.start()

    def close(self) -> None:
        """Stop serving; remove the socket unless a newer stub took its place. Idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):  # closed before, or never bound
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def answer(self, line: bytes) -> bytes:
        """One request line to one answer line; every refusal is an answer."""
        try:
            answer = _Answer(result=self._do(_parse(line)))
        except MbltError as error:
            answer = _Answer(error=error.info())
        return msgspec.json.encode(answer) + b"\n"

    def _accept(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(OSError):  # closed; or no file descriptor left, then after a pause
                while True:
                    connection, _ = self._listener.accept()
                    threading.Thread(target=self._talk, args=(connection,), name="mblt-talk", daemon=True).start()
            self._closing.wait(_ACCEPT_PAUSE_S)

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(_TALK_LIMIT_S)
        with connection, connection.makefile("rb") as reader, contextlib.suppress(OSError):  # it left: nobody to tell
            line = reader.readline(_LONGEST_LINE)
            if line:
                connection.sendall(self.answer(line))

    def _do(self, request: ControlRequest) -> dict[str, Any]:
        if request.verb == "abort":
            return {"aborted": self._service.abort(request.key(), request.request_id, request.abort_token)}
        if request.verb == "renew":
            found = self._service.renew(request.key(), request.request_id, request.abort_token, request.lease_s)
            return {"renewed": found}
        if request.verb == "stats":
            return self._service.stats()
        self._check_admin(request)
        self._service.drain(request.limit_s)
        return {"draining": True}

    def _check_admin(self, request: ControlRequest) -> None:
        given = request.admin_key.encode()
        if not self._admin_key or not hmac.compare_digest(given, self._admin_key):
            raise PermissionDenied(f"{request.verb} needs the admin key", param="admin_key")


def _parse(line: bytes) -> ControlRequest:
    try:
        return msgspec.json.decode(line, type=ControlRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"bad control request: {error}", param="request") from error
