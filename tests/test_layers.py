"""The structure of the code, held by machine: who may import whom, who reads the environment, how long a file may be.

Every import statement counts, also one inside a function or under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "backend_src" / "triton_mblt"

# Folder of triton_mblt -> folders that it may import, beside itself.
MAY_IMPORT = {
    "core": set(),
    "text": {"core"},
    "npu": {"core"},
    "vision": {"npu", "core"},
    "engine": {"npu", "text", "core"},
    "worker": {"engine", "npu", "text", "core"},
    "triton_io": {"worker", "text", "vision", "core"},
    "emulator": {"core"},
    "launcher": {"core", "emulator"},
}
# Modules directly in triton_mblt.
MAY_IMPORT_TOP = {"cli": {*MAY_IMPORT, ""}, "__main__": {"cli"}, "__init__": set()}
# The emulated `qbruntime` stands in for a foreign package: it imports nothing of ours.
DROP_IN = PACKAGE / "emulator" / "site"
# A bench of one function, with no server around it; everything else in perf/ speaks to servers.
BENCHES = {ROOT / "perf" / "sampler.py"}
MAX_LINES = 400

ENVIRONMENT_READERS = {"core/settings.py", "emulator/site/qbruntime/_options.py"}


def python_files(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a file imports. Relative imports are made absolute."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = path.relative_to(PACKAGE.parent if PACKAGE in path.parents else ROOT)
                parents = inside.parts[: -node.level]
                base = ".".join([*parents, base]).rstrip(".")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, str(given.value)) for given in node.args[:1] if isinstance(given, ast.Constant))


def layer_of(dotted: str) -> str | None:
    """The folder or top module of triton_mblt that a dotted name lies in; "" for the package, None for others."""
    first, _, rest = dotted.partition(".")
    if first != "triton_mblt":
        return None
    name = rest.split(".", 1)[0]
    return name if name in MAY_IMPORT or (PACKAGE / f"{name}.py").is_file() else ""


def layer_errors(path: Path, package: Path = PACKAGE) -> list[str]:
    parts = path.relative_to(package).parts
    own = parts[0] if len(parts) > 1 else path.stem
    allowed = MAY_IMPORT.get(own, MAY_IMPORT_TOP.get(own))
    assert allowed is not None, f"{path} lies in a folder that has no rule: add one to tests/test_layers.py"
    return [
        f"{path.relative_to(package)}:{line} imports {name}"
        for line, name in imported(path)
        if (layer := layer_of(name)) is not None and layer not in {*allowed, own, ""}
    ]


def test_imports_point_down_only() -> None:
    files = [path for path in python_files(PACKAGE) if DROP_IN not in path.parents]
    assert files
    assert [error for path in files for error in layer_errors(path)] == []


def test_the_drop_in_runtime_client_and_perf_import_nothing_of_ours() -> None:
    files = [path for path in python_files(DROP_IN, ROOT / "client", ROOT / "perf") if path not in BENCHES]
    itself = ".".join(DROP_IN.relative_to(PACKAGE.parent).parts)
    ours = [(p, line, name) for p in files for line, name in imported(p) if layer_of(name) is not None]
    assert [f"{p}:{line} imports {name}" for p, line, name in ours if not name.startswith(itself + ".")] == []


def importers(module: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in python_files(PACKAGE)
        if DROP_IN not in path.parents and any(name.split(".")[0] == module for _, name in imported(path))
    }


def test_only_the_runtime_imports_qbruntime_and_the_zoo() -> None:
    found = set().union(*(importers(name) for name in ("qbruntime", "transformers_mblt", "mblt_npu", "mblt_model_zoo")))
    assert {name for name in found if not re.fullmatch(r"npu/runtime\w*\.py", name)} == set()


def test_only_the_wire_imports_tritons_module() -> None:
    assert importers("triton_python_backend_utils") <= {"triton_io/wire.py"}


def test_only_the_settings_read_the_environment() -> None:
    def reads(path: Path) -> bool:
        names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        froms = {name for _, name in imported(path)}
        return bool({"os.environ", "os.getenv"} & (names | froms))

    found = {path.relative_to(PACKAGE).as_posix() for path in python_files(PACKAGE) if reads(path)}
    assert found <= ENVIRONMENT_READERS


def test_models_of_the_repository_import_triton_io_only() -> None:
    files = python_files(ROOT / "model_repository")
    wrong = [f"{p}:{n}" for p in files for _, n in imported(p) if layer_of(n) not in (None, "", "triton_io")]
    assert wrong == []


def tracked_files() -> list[Path]:
    """All Python files under version control, or simply all, outside a git checkout."""
    done = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]
    return python_files(*(ROOT / name for name in ("backend_src", "client", "perf", "tests", "model_repository")))


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in tracked_files()}
    assert {str(path): count for path, count in lengths.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize(
    ("where", "line", "wrong"),
    [
        ("core/a.py", "import triton_mblt.engine.engine", True),
        ("core/a.py", "def f():\n    from triton_mblt.engine import engine", True),
        ("core/a.py", "from ..engine import engine", True),
        ("core/a.py", "import importlib\nimportlib.import_module('triton_mblt.npu.runtime')", True),
        ("engine/a.py", "from triton_mblt.npu.spec import Spec", False),
        ("npu/a.py", "from triton_mblt.engine.engine import Engine", True),
        ("triton_io/a.py", "from triton_mblt.engine import slots", True),
        ("engine/a.py", "from . import slots", False),
        ("engine/a.py", "from triton_mblt import cli", True),
    ],
)
def test_the_rule_sees_every_kind_of_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, line: str, wrong: bool
) -> None:
    package = tmp_path / "triton_mblt"
    (package / where).parent.mkdir(parents=True)
    (package / where).write_text(line + "\n")
    (package / "cli.py").touch()
    monkeypatch.setattr(f"{__name__}.PACKAGE", package)
    assert bool(layer_errors(package / where, package)) is wrong
