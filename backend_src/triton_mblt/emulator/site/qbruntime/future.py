# ruff: noqa: ARG002 - the vendor's signatures
"""`Future`: the result of an asynchronous inference, which language models do not have. One is never valid here."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import failure, unavailable


class Future:
    """An invalid future: nothing to wait for, nothing to get."""

    def __init__(self, _future: Any | None = None, _inputs: list[np.ndarray[Any, Any]] | None = None) -> None:
        self._inputs = _inputs

    @classmethod
    def from_cpp(cls, _future: Any, _inputs: list[np.ndarray[Any, Any]]) -> Future:
        """Not on the emulated NPU."""
        raise unavailable("asynchronous inference")

    def wait_for(self, timeout_ms: int) -> bool:
        """False: there is nothing to wait for."""
        return False

    def get(self) -> list[np.ndarray[Any, Any]]:
        """Error Future_NotValid."""
        raise failure("Future_NotValid", "this future was never started")
