"""The kernel that computes: an artefact's real numbers by torch and transformers, over packed ragged rows.

Owns the torch model and its KV memory. Calls are checked and serialised by the runtime's Model before they come here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from . import _compute_attention as attention
from ._artefact import Artefact
from ._compute_model import load_model
from ._kernel import Row


class ComputeKernel:
    """The `Kernel` of compute mode. `threads`: torch's intra-op threads, process-wide; None leaves torch's default."""

    def __init__(self, artefact: Artefact, threads: int | None = None) -> None:
        """Load the weights (seconds). Raises ArtefactError when they do not fit the header or fail their checksums."""
        if threads is not None:
            torch.set_num_threads(threads)
        attention.register()
        with torch.device("cpu"):  # the zoo builds us inside from_pretrained, where the meta device is the default
            model = load_model(artefact, attention.NAME)
            self._memory = attention.KvMemory(
                artefact.layers, artefact.batch, artefact.kv_heads, artefact.max_cache, artefact.head_dim
            )
        self._layers, self._head = model.model, model.lm_head
        self._all_positions = artefact.logits == "all"

    @torch.inference_mode()
    def forward(self, inputs: Sequence[npt.NDArray[np.float32]], rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Compute one call. inputs[0]: [T, hidden], rows packed in order; T is the sum of row lengths.

        Returns fresh logits, [T, vocab] for an all-position artefact, else [len(rows), vocab].
        """
        call = attention.Call(self._memory, rows)
        embeddings = torch.from_numpy(np.require(inputs[0], requirements="W")).unsqueeze(0)
        hidden = self._layers(
            inputs_embeds=embeddings, position_ids=call.positions.unsqueeze(0), use_cache=False, mblt_call=call
        ).last_hidden_state[0]
        if not self._all_positions:
            hidden = hidden[call.last]
        logits: npt.NDArray[np.float32] = self._head(hidden).numpy()
        return logits

    @torch.inference_mode()
    def dump(self, cache_id: int) -> list[bytes]:
        """The whole slot, one blob per layer; NaN where nothing was written."""
        return self._memory.dump(cache_id)

    @torch.inference_mode()
    def load(self, cache_id: int, blobs: Sequence[bytes]) -> None:
        """Overwrite the whole slot with what `dump` gave."""
        self._memory.load(cache_id, blobs)
