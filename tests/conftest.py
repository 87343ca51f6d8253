"""What all tests share: folders of their own for caches, and no setting of the caller's that would change them."""

from __future__ import annotations

import os

import pytest

# Tests say what they need; a deployment's variables in the caller's shell must not reach them. Threads: small machines.
for _name in [name for name in os.environ if name.startswith(("MBLT_", "VLLM_MBLT_"))]:
    del os.environ[_name]
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the quick tests first: a broken unit is known before a server is started."""
    order = ("unit", "contract", "serving", "e2e")

    def rank(item: pytest.Item) -> int:
        return next((n for n, part in enumerate(order) if f"tests/{part}/" in item.path.as_posix()), -1)

    items.sort(key=rank)
