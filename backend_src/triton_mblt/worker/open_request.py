"""One open request on the stub's side, and the only place that makes sure it gets exactly one final output."""

from __future__ import annotations

import threading
from collections.abc import Callable

from triton_mblt.core.errors import MbltError
from triton_mblt.core.events import Output
from triton_mblt.core.request import GenerateRequest

Deliver = Callable[[Output], None]


class OpenRequest:
    """From submit to the final output. `worker` (None while it waits for one), `taken` (that worker has read it),
    `aborted` and `lease_s` are under the service's lock."""

    def __init__(self, request: GenerateRequest, deliver: Deliver, abort_token: str, lease_s: float) -> None:
        self.request = request
        self.abort_token = abort_token
        self.lease_s = lease_s
        self.worker: int | None = None
        self.taken = False
        self.aborted = False
        self._deliver = deliver
        self._lock = threading.Lock()  # held while delivering, so that nothing can follow a final output
        self._done = False

    def give(self, output: Output) -> None:
        """Deliver, unless the final output was delivered already. A request whose callback raised gets no more."""
        with self._lock:
            if self._done:
                return
            self._done = True  # until the callback has returned
            self._deliver(output)
            self._done = output.final

    def failure(self, error: MbltError) -> Output:
        """The final output that says `error`."""
        info = error.info(self.request.request_id)
        return Output(self.request.handle, "", (), error=info, num_input_tokens=len(self.request.prompt) // 4)
