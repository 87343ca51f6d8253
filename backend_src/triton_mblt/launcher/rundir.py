"""The private folder of one running server, and what has to go when the server goes.

Owns: the folder (mode 0700, name `triton-mblt-<pid>-...` under the temporary folder), the two random keys in it, and
the prefix of the server's /dev/shm entries. Sweeps what earlier launchers of this user left when they were killed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "triton-mblt-"
_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class RunDir:
    """`route_key` opens Triton's restricted routes (visible in the process list), `admin_key` those of lm_control."""

    path: Path
    route_key: str
    admin_key: str

    @property
    def server_id(self) -> str:
        """The name under which the server of this run makes itself known."""
        return self.path.name

    @property
    def shm_prefix(self) -> str:
        return self.path.name + "-"

    @property
    def admin_key_file(self) -> Path:
        return self.path / "admin.key"

    @property
    def route_key_file(self) -> Path:
        return self.path / "route.key"

    def remove_shared_memory(self) -> None:
        """Remove the server's /dev/shm entries. Call when no process of the server is left."""
        for entry in _SHM.glob(self.shm_prefix + "*"):
            entry.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and the /dev/shm entries. Call when no process of the server is left."""
        self.remove_shared_memory()
        shutil.rmtree(self.path, ignore_errors=True)


def create() -> RunDir:
    """A fresh run folder of this process, with its keys in files of mode 0600."""
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    run = RunDir(path=path, route_key=secrets.token_urlsafe(24), admin_key=secrets.token_urlsafe(24))
    for file, key in ((run.route_key_file, run.route_key), (run.admin_key_file, run.admin_key)):
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(key + "\n")
    return run


def find() -> list[RunDir]:
    """Run folders of this user, of living and of dead launchers."""
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(_PREFIX + "*")):
        try:
            mine = not path.is_symlink() and path.stat().st_uid == os.getuid()  # anyone can make a link to our folder
            run = RunDir(path, (path / "route.key").read_text().strip(), (path / "admin.key").read_text().strip())
        except OSError:  # another user's, or just being made or removed
            continue
        if mine:
            found.append(run)
    return found


def is_alive(run: RunDir) -> bool:
    """Whether the launcher that made this folder still runs."""
    return Path("/proc", run.path.name[len(_PREFIX) :].split("-", 1)[0]).exists()


def sweep() -> int:
    """Remove the folders and /dev/shm entries of launchers that were killed. Returns how many."""
    dead = [run for run in find() if not is_alive(run)]
    for run in dead:
        run.remove()
    return len(dead)
