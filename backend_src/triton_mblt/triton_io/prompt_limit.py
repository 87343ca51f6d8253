"""How many tokens a prompt may have, as the tokenizer knows it: asked of the running LM, and only for long texts.

Keeps a hopeless prompt from being encoded, and its ids from growing the stubs' shared memory, which never shrinks. The
LM decides all the same; without an answer there is no limit here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from triton_mblt.core.errors import InvalidRequest, MbltError
from triton_mblt.text.tokenizer import TextTokenizer
from triton_mblt.worker.control import call

_SHORT_BYTES = 4096  # not worth a question
_KEPT_S = 30.0  # a reloaded LM may have another limit
_RETRY_S = 2.0


class PromptLimit:
    """Thread-safe. `ask` gives max_model_len, or None while it is not known."""

    def __init__(self, tokenizer: TextTokenizer, ask: Callable[[], int | None]) -> None:
        self._tokenizer = tokenizer
        self._ask = ask
        self._lock = threading.Lock()
        self._limit: int | None = None
        self._good_until = 0.0

    def check_text(self, text: str) -> None:
        """Refuse a text that must have too many tokens. Errors: InvalidRequest("prompt")."""
        limit = self._known() if len(text) > _SHORT_BYTES else None
        if limit is not None and (least := self._tokenizer.fewest_tokens(text)) > limit:
            raise _too_long(f"at least {least}", limit)

    def check_ids(self, count: int) -> None:
        """Errors: InvalidRequest("prompt")."""
        limit = self._known() if count > _SHORT_BYTES else None
        if limit is not None and count > limit:
            raise _too_long(str(count), limit)

    def _known(self) -> int | None:
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._limit = self._ask()
                self._good_until = time.monotonic() + (_RETRY_S if self._limit is None else _KEPT_S)
            return self._limit


def limit_of(lm: str) -> int | None:
    """max_model_len of the LM of this name in the same server, None when it does not serve yet."""
    try:
        model = call(lm, {"verb": "stats"})["model"]
    except MbltError:
        return None
    return None if model is None else int(model["max_model_len"])


def _too_long(count: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"the prompt has {count} tokens, max_model_len is {limit}", param="prompt")
