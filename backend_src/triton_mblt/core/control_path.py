"""Where the control socket of an LM lies: named by the Triton server's process id and the model's name.

Known to both ends of the socket (worker/control.py) and to the launcher, which removes what a killed server left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from triton_mblt.core.errors import PermissionDenied


def socket_path(name: str, server_pid: int) -> Path:
    """Readable for a person who looks, distinct by the digest, and short enough for a unix socket's 107 bytes."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:24]
    return private_folder() / f"{_prefix(server_pid)}{readable}-{digest}"


def private_folder() -> Path:
    """A folder of this user's own with mode 0700. Raises PermissionDenied when someone else made it first."""
    folder = _folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionDenied(f"{folder} is not a private folder of this user; remove it")
    return folder


def remove_sockets(server_pid: int) -> None:
    """Remove the sockets of a server that is gone, and the folder when it was the last. Never fails."""
    folder = _folder()
    with contextlib.suppress(OSError):  # no folder, or another server's sockets are in it
        for path in folder.glob(_prefix(server_pid) + "*"):
            path.unlink(missing_ok=True)
        folder.rmdir()


def _folder() -> Path:
    return Path(tempfile.gettempdir(), f"triton-mblt-{os.getuid()}")


def _prefix(server_pid: int) -> str:
    return f"lm-{server_pid}-"
