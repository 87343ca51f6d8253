"""The emulated NPU: a drop-in `qbruntime`, the builder of its artefacts, its counters and its faults.

`site/` is the folder to put first on a worker's PYTHONPATH; nothing in this process is patched.
"""

from __future__ import annotations

from pathlib import Path


def site_path() -> Path:
    """The folder that holds the drop-in package `qbruntime`."""
    return Path(__file__).resolve().parent / "site"
