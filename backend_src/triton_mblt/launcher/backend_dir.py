"""Finds the server inside the package nvidia-pytriton and assembles a backend directory for the running Python.

Only files are looked at; pytriton itself is never imported (its Python dependencies are not installed). The result is
links in the run folder: Triton's python backend beside the stub of this CPython version.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from triton_mblt.core.errors import ConfigError

STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class EmbeddedServer:
    """Where the parts of the embedded server lie. `site_packages` is the folder that holds the package."""

    site_packages: Path
    binary: Path
    backend: Path
    stub: Path
    libraries: Path


def site_folders() -> list[Path]:
    """Folders in which this Python looks for installed packages."""
    names = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    names += [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return [Path(name) for name in dict.fromkeys(names)]


def find_embedded_server(folders: Iterable[Path] | None = None) -> EmbeddedServer:
    """The embedded server in the first folder that has one. Errors: ConfigError when it or a part of it is missing."""
    for folder in site_folders() if folders is None else folders:
        root = folder / "pytriton" / "tritonserver"
        if (root / "bin" / "tritonserver").is_file():
            break
    else:
        raise ConfigError(
            "the package nvidia-pytriton, which carries tritonserver, is not installed: run `make setup`, or "
            "`pip install --no-deps nvidia-pytriton`",
            param="nvidia-pytriton",
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    server = EmbeddedServer(
        site_packages=folder,
        binary=root / "bin" / "tritonserver",
        backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / version / STUB,
        libraries=folder / "nvidia_pytriton.libs",
    )
    if not server.stub.is_file():
        raise ConfigError(f"nvidia-pytriton carries no stub for Python {version}", param="python")
    for part in (server.backend / "libtriton_python.so", server.libraries):
        if not part.exists():
            raise ConfigError(f"nvidia-pytriton is damaged: {part} is missing; reinstall it", param="nvidia-pytriton")
    return server


def shared_libpython() -> Path | None:
    """The shared library of the running Python, which the stub loads, or None when there is none beside it.

    A stub that finds another patch release of it (a system's libpython3.11 beside a pyenv 3.11) would run this Python's
    standard library on a foreign interpreter.
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch and folders[0]:
        folders.append(Path(folders[0]) / multiarch)
    for folder in folders:
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    return None


def assemble(server: EmbeddedServer, run_dir: Path) -> tuple[Path, Path]:
    """Make `backends/` and `lib/` in the run folder. Returns (backend directory, library folder for the stub)."""
    python = run_dir / "backends" / "python"
    python.mkdir(parents=True)
    for part in server.backend.iterdir():
        if part.is_file():
            (python / part.name).symlink_to(part)
    (python / STUB).symlink_to(server.stub)
    library = run_dir / "lib"
    library.mkdir()
    libpython = shared_libpython()
    if libpython is not None:
        (library / libpython.name).symlink_to(libpython.resolve())
    return python.parent, library
