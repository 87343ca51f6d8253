"""What the builder reads from: one model's config, tensors and tokenizer, whatever file they came from.

Owns the `Source` record and the element conversions. Knows no file format and no package layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from triton_mblt.emulator.families import Family
from triton_mblt.emulator.site.qbruntime._artefact import Chunks, TensorSpec

PIECE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of the source: safetensors element type, shape, and a function that reads its bytes in pieces."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Chunks]

    def spec(self, name: str) -> TensorSpec:
        return TensorSpec(name, self.dtype, self.shape)


@dataclass(frozen=True)
class Source:
    """One model to build from.

    config: the checkpoint's config.json. tensors: by checkpoint name. generation: its generation_config.json.
    write_tokenizer: puts the tokenizer's files in a folder. rope_factors: divisors of the rotary frequencies, if any.
    """

    path: Path
    family: Family
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    generation: Mapping[str, Any]
    write_tokenizer: Callable[[Path], None]
    rope_factors: SourceTensor | None = field(default=None)


def as_float32(tensor: SourceTensor) -> SourceTensor:
    """The same tensor with float32 elements."""
    if tensor.dtype == "F32":
        return tensor
    return SourceTensor("F32", tensor.shape, lambda: _widen(tensor.dtype, tensor.read()))


def array_pieces(array: np.ndarray[Any, Any]) -> Chunks:
    """The bytes of an array in C order, in pieces."""
    flat = np.ascontiguousarray(array).data.cast("B")
    for start in range(0, flat.nbytes, PIECE_BYTES):
        yield flat[start : start + PIECE_BYTES]


def _widen(dtype: str, pieces: Iterator[bytes | memoryview]) -> Chunks:
    for piece in pieces:
        if dtype == "BF16":
            wide = (np.frombuffer(piece, dtype="<u2").astype("<u4") << 16).view("<f4")
        else:
            wide = np.frombuffer(piece, dtype="<f2").astype("<f4")
        yield wide.data.cast("B")
