"""The checks of one inference call, from arrays to rows. Stricter than the hardware, which forgives some of it.

Wrong shapes are ValueError and wrong types TypeError, as in the vendor's Python layer; all else has a status name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._artefact import Artefact
from ._errors import failure
from ._kernel import Row
from ._numbers import int32
from ._values import BatchParam

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_RAW_TYPES = (np.float32, np.int8, np.uint8)


def fits(given: Shape, declared: Shape) -> bool:
    """Whether an array's shape fits a declared one: same rank or one leading axis more; -n takes multiples of n."""
    if len(given) not in (len(declared), len(declared) + 1):
        return False
    inner = given[len(given) - len(declared) :]
    return all(have % want == 0 and (want < 0 or have == want) for have, want in zip(inner, declared, strict=True))


def layout(inputs: Sequence[Array], declared: Sequence[Shape]) -> tuple[bool, bool]:
    """Whether the inputs fit as (height-width-channel, channel-first). ValueError when neither."""
    if len(inputs) == len(declared):
        hwc = all(fits(array.shape, shape) for array, shape in zip(inputs, declared, strict=True))
        chw = all(fits(array.shape, (shape[2], *shape[:2])) for array, shape in zip(inputs, declared, strict=True))
        if hwc or chw:
            return hwc, chw
    raise ValueError("Input shape is invalid.")


def tokens_of(array: Array, hidden: int) -> npt.NDArray[np.float32]:
    """The input as [T, hidden]. Errors: TypeError, Model_DtypeMismatched, Model_NotSupported for a leading axis > 1."""
    if array.dtype.type not in _RAW_TYPES:
        raise TypeError(f"infer takes float32, int8 or uint8 arrays, got {array.dtype}")
    if array.dtype != np.float32:
        raise failure("Model_DtypeMismatched", f"the input of this model is float32, got {array.dtype}")
    if array.ndim == 4 and array.shape[0] != 1:
        raise failure("Model_NotSupported", f"batch size {array.shape[0]} is not supported; pack rows and give params")
    return array.reshape(-1, hidden)


def check_outputs(outputs: Sequence[Array], declared: Sequence[Shape], dtype: np.dtype[Any]) -> None:
    """ValueError unless the caller's output arrays have the declared number, type and shapes."""
    if len(outputs) != len(declared):
        raise ValueError("The number of outputs is different.")
    for output, shape in zip(outputs, declared, strict=True):
        if output.dtype != dtype:
            raise ValueError("Output dtype mismatch.")
        if output.shape != shape:
            raise ValueError("Output shape mismatch.")


def single_row(artefact: Artefact, tokens: int, cache_size: int) -> list[Row]:
    """The one row of a call without params."""
    if artefact.batch > 1:
        raise failure("Model_InvalidBatchParam", f"this model has {artefact.batch} slots: params are needed")
    size = int32(cache_size, "cache_size")
    if tokens < 1:
        raise failure("Model_ShapeMismatched", "sequence length of inputs[0] must be positive")
    if tokens > artefact.max_width:
        reason = f"sequence length of inputs[0] exceeds maximum value ({tokens} > {artefact.max_width})"
        raise failure("Model_ShapeMismatched", reason)
    row = Row(tokens, size, 0)
    _check_capacity(artefact, row)
    return [row]


def batch_rows(artefact: Artefact, tokens: int, params: Sequence[BatchParam]) -> list[Row]:
    """The rows of a call with params, in their order."""
    rows = [Row(param.sequence_length, param.cache_size, param.cache_id) for param in params]
    problem = _batch_problem(artefact, tokens, rows)
    if problem:
        raise failure("Model_InvalidBatchParam", problem)
    for row in rows:
        _check_capacity(artefact, row)
    return rows


def _batch_problem(artefact: Artefact, tokens: int, rows: Sequence[Row]) -> str:
    """What is wrong with the rows of a batched call, in words; empty when nothing is."""
    ids = [row.cache_id for row in rows]
    if not rows:
        return "params is empty"
    if len(rows) > artefact.batch:
        return f"batch size exceeds maximum value ({len(rows)} > {artefact.batch})"
    if len(set(ids)) != len(ids):
        return f"duplicated cache_id in {ids}"
    for row in rows:
        if not 0 <= row.cache_id < artefact.batch:
            return f"cache_id {row.cache_id} is outside 0..{artefact.batch - 1}"
        if row.length < 1:
            return f"sequence length {row.length} of cache_id {row.cache_id} must be positive"
        if row.length > artefact.row_limit:
            return f"sequence length exceeds maximum value ({row.length} > {artefact.row_limit})"
        if row.cache_size < 0:
            return f"cache_size {row.cache_size} of cache_id {row.cache_id} is negative"
    total = sum(row.length for row in rows)
    if total != tokens:
        return f"sequence length is mismatched between input and params (input: {tokens}, params: {total})"
    if total > artefact.max_width:
        return f"sum of sequence lengths exceeds maximum value ({total} > {artefact.max_width})"
    return ""


def _check_capacity(artefact: Artefact, row: Row) -> None:
    if row.cache_size < 0 or row.cache_size + row.length > artefact.max_cache:
        reason = f"cache_size {row.cache_size} + sequence length {row.length}, the cache has {artefact.max_cache}"
        raise failure("Model_CacheOverflow", reason)
