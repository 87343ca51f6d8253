"""Loading a package through the model zoo, and the device call. The only importer of `qbruntime` and
`transformers_mblt`.

The zoo decides configuration, device placement and the embedding table (contract 4); after loading, only numpy and
`Model.infer` remain on the hot path. One `NpuModel` is used by one thread.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import qbruntime

from triton_mblt.core.errors import ConfigError, MbltError, NpuFault
from triton_mblt.core.package import PackageConfig, read_config
from triton_mblt.core.settings import Settings
from triton_mblt.npu.chunk import configured_chunk, row_limit
from triton_mblt.npu.device import Floats, Tokens
from triton_mblt.npu.spec import LogitsKind, ModelSpec, Row

_FAMILIES = {
    "mobilint-llama": "llama",
    "mobilint-exaone": "exaone",
    "mobilint-exaone4": "exaone4",
    "mobilint-qwen2": "qwen2",
    "mobilint-qwen3": "qwen3",
}
# Status names after which loading the same package again fails alike.
_PERMANENT = (
    "FailedToLoadMXQ",
    "BrokenMXQ",
    "MXQAndModelConfigNotMatch",
    "NotSupported",
    "UnknownDevice",
    "NoTargetCores",
)


class NpuModel:
    """A launched text MXQ with its embedding table: the real `Device`. Owns the NPU; `close` gives it back."""

    def __init__(self, model: Any, table: Floats, spec: ModelSpec) -> None:
        self._model = model
        self._table = table
        self.spec = spec

    @classmethod
    def load(cls, folder: Path, settings: Settings) -> NpuModel:
        """Load and launch the package in `folder`. Errors: ConfigError (a retry fails alike) or NpuFault."""
        config = read_config(folder)
        zoo_model = _load_with_zoo(folder, config, settings)
        mxq = zoo_model.get_mxq_model()
        # A copy of our own: the zoo's table is the mapped file, where each row read for the first time is a page fault.
        table: Floats = np.array(zoo_model.get_input_embeddings().weight.detach().float().numpy())
        try:
            spec = _read_spec(mxq, table, config, settings)
        except qbruntime.QbRuntimeError as error:
            raise _load_error(error) from error
        return cls(mxq, table, spec)

    def prepare(self, tokens: Tokens, rows: Sequence[Row]) -> Callable[[], Floats]:
        """See Device.prepare."""
        embeds = [self._table[tokens][None, None]]
        if self.spec.batched:
            params = [qbruntime.BatchParam(row.length, row.cache_size, row.cache_id) for row in rows]
            call = partial(self._model.infer, embeds, None, 0, params)
        else:
            call = partial(self._model.infer, embeds, None, rows[0].cache_size)
        return partial(self._run, call, len(tokens) if self.spec.logits == "all" else len(rows))

    def _run(self, call: Callable[[], list[Floats]], expected: int) -> Floats:
        try:
            logits = call()[0].reshape(-1, self.spec.vocab_size)
        except (qbruntime.QbRuntimeError, ValueError) as error:
            raise NpuFault(f"device call failed: {_first_line(error)}") from error
        if len(logits) != expected:
            raise NpuFault(f"the device returned {len(logits)} rows of logits instead of {expected}")
        return logits

    def dump(self, cache_id: int) -> list[bytes]:
        """See Device.dump."""
        try:
            blobs: list[bytes] = self._model.dump_cache_memory(cache_id)
        except qbruntime.QbRuntimeError as error:
            raise NpuFault(f"KV dump of cache_id {cache_id} failed: {_first_line(error)}") from error
        return blobs

    def restore(self, cache_id: int, blobs: list[bytes]) -> None:
        """See Device.restore."""
        try:
            self._model.load_cache_memory(blobs, cache_id)
        except qbruntime.QbRuntimeError as error:
            raise NpuFault(f"KV load into cache_id {cache_id} failed: {_first_line(error)}") from error

    def close(self) -> None:
        self._model.dispose()


def _load_with_zoo(folder: Path, config: PackageConfig, settings: Settings) -> Any:
    family = _FAMILIES.get(config.model_type)
    if family is None:
        raise ConfigError(
            f"model_type {config.model_type!r} in {folder}/config.json is not one of {', '.join(sorted(_FAMILIES))}",
            param="model",
        )
    if not config.mxq_path:
        raise ConfigError(f"{folder}/config.json names no mxq_path", param="mxq_path")
    # Only this family's modules: the zoo's register() imports all nineteen architectures, seconds of start-up.
    importlib.import_module(f"transformers_mblt.models.{family}.modeling_{family}")
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    try:
        # max_batch_size=1: the zoo would launch ceil(max_batch_size / K) models; we want one and read K from it.
        model, loading = auto.from_pretrained(
            str(folder), max_batch_size=1, output_loading_info=True, trust_remote_code=settings.trust_remote_code
        )
    except qbruntime.QbRuntimeError as error:
        raise _load_error(error) from error
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise ConfigError(f"the model zoo cannot load {folder}: {_first_line(error)}", param="model") from error
    except Exception as error:  # the zoo raises bare Exception for a missing MXQ (contract 4.4)
        if type(error) is not Exception:
            raise
        raise ConfigError(f"the model zoo cannot load {folder}: {_first_line(error)}", param="model") from error
    wrong = sorted(loading["missing_keys"]) + sorted(loading["unexpected_keys"])
    if wrong:
        raise ConfigError(
            f"embedding table of {folder} does not fit: wrong or missing keys {', '.join(wrong)}", param="model"
        )
    return model


def _read_spec(mxq: Any, table: Floats, config: PackageConfig, settings: Settings) -> ModelSpec:
    caches = mxq.get_cache_infos()
    if not caches:
        raise ConfigError("the MXQ has no KV cache, so it is no language model", param="mxq_path")
    slots = max(1, int(caches[0].num_batches))
    entry = mxq.get_input_buffer_info()[0]
    vocab = int(mxq.get_model_output_shape()[0][-1])
    hidden = int(mxq.get_model_variant_handle(0).get_model_input_shape()[0][-1])
    if table.shape != (vocab, hidden):
        raise ConfigError(
            f"embedding table is {table.shape}, the MXQ wants ({vocab}, {hidden}): other build?", param="model"
        )
    batched = slots > 1
    configured = settings.prefill_chunk or configured_chunk(config.npu_prefill_chunk_size, config.core_mode)
    width, capacity = int(entry.max_width), int(entry.max_cache_size)
    row = row_limit(configured, batched=batched, artefact_limit=width)
    return ModelSpec(
        vocab_size=vocab,
        hidden_size=hidden,
        slots=min(slots, settings.max_batch_size or slots),
        batched=batched,
        max_cache=min(capacity, settings.max_model_len or capacity),
        row_limit=row,
        call_limit=width if width > 0 else row * slots,
        logits=_probe_logits(mxq, hidden, vocab, batched=batched),
        slot_bytes=sum(int(cache.size) for cache in caches),
        device=settings.npu,
    )


def _probe_logits(mxq: Any, hidden: int, vocab: int, *, batched: bool) -> LogitsKind:
    """Two tokens tell both layouts apart for certain; declared shapes do not (contract 2.6). Writes slot 0, which
    nobody owns yet."""
    embeds = np.zeros((1, 1, 2, hidden), dtype=np.float32)
    if batched:
        outputs = mxq.infer([embeds], None, 0, [qbruntime.BatchParam(2, 0, 0)])
    else:
        outputs = mxq.infer([embeds], None, 0)
    rows = math.prod(outputs[0].shape) // vocab
    if rows not in (1, 2):
        raise ConfigError(f"the MXQ answers two tokens with {rows} rows of logits", param="mxq_path")
    return "all" if rows == 2 else "last"


def _load_error(error: Exception) -> MbltError:
    line = _first_line(error)
    if any(name in line for name in _PERMANENT):
        return ConfigError(f"the runtime refuses the MXQ: {line}", param="mxq_path")
    return NpuFault(f"the NPU cannot be opened: {line}")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
