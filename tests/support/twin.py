"""The emulated runtime inside a test process: fresh options, tiny artefacts without weights, tokens as embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime import _faults, _options, _stats, _trace
from triton_mblt.emulator.site.qbruntime._artefact import Limits, write_artefact

HIDDEN = 32
VOCAB = 97
MAX_CACHE = 64


def configure(monkeypatch: pytest.MonkeyPatch, run_dir: Path, **values: str) -> None:
    """Give this process the options `values` (MBLT_EMULATOR_<NAME>), in latency mode without pacing by default."""
    forget()
    options = {"MODE": "latency", "PROFILE": "seed-0ms", "RUN_DIR": str(run_dir), **values}
    for name, value in options.items():
        monkeypatch.setenv(f"MBLT_EMULATOR_{name}", value)


def forget() -> None:
    """Drop what the emulator keeps for a process: options, faults, counters, a running trace."""
    _trace.stop_tracing_events()
    if _stats._stats is not None:
        _stats._stats.remove()
    _stats._stats = None
    _options.options.cache_clear()
    _faults._board_of.cache_clear()


def artefact(folder: Path, *, batch: int = 1, logits: str = "last", **changes: Any) -> str:
    """The path of an artefact without weights, good for latency mode."""
    values: dict[str, Any] = {
        "vocab": VOCAB, "hidden": HIDDEN, "layers": 3, "kv_heads": 2, "head_dim": 8, "config": {}, **changes,
    }  # fmt: skip
    limits = {"max_cache": MAX_CACHE, "max_width": 48, "row_limit": 48 if batch == 1 else 12}
    limits = {name: values.pop(name, value) for name, value in limits.items()}
    path = folder / f"{batch}-{logits}-{len(list(folder.iterdir()))}.mxq"
    write_artefact(path, family="llama", limits=Limits(batch=batch, logits=logits, **limits), tensors=[], **values)  # type: ignore[arg-type]
    return str(path)


def embeddings(tokens: Sequence[int], rank: int = 4) -> npt.NDArray[np.float32]:
    """Tokens as the runtime takes them, (1, 1, T, H) or (1, T, H)."""
    table = np.random.default_rng(3).standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    return table[list(tokens)].reshape((1,) * (rank - 2) + (len(tokens), HIDDEN))


def run(model: q.Model, *rows: tuple[Sequence[int], int, int]) -> npt.NDArray[np.float32]:
    """One batched call of (tokens, cache_size, cache_id); the logits."""
    packed = [token for tokens, _, _ in rows for token in tokens]
    params = [q.BatchParam(len(tokens), size, slot) for tokens, size, slot in rows]
    (logits,) = model.infer([embeddings(packed)], params=params)
    return np.array(logits)


@contextmanager
def refused(status: str) -> Iterator[None]:
    """The block raises QbRuntimeError with this status name, in the vendor's form."""
    with pytest.raises(q.QbRuntimeError) as caught:
        yield
    first, second = str(caught.value).split("\n")
    assert first == f"{status} occurred."
    assert second.startswith("Please visit https://")
