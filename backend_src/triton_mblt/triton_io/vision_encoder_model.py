"""Triton model `vision_encoder`: the place of the image encoder in the repository. It refuses every image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_mblt.core.errors import Unsupported
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.sender import Responder


class VisionEncoderModel:
    """Serves no model yet: this deployment's language models take text only."""

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            request_id = wire.identity(request).request_id
            refusal = Unsupported("this server takes no images", param="image")
            Responder(request, request_id).fail(refusal.info(request_id))
