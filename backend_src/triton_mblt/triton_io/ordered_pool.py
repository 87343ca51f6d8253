"""A bounded pool of threads with one queue per key: jobs of one key run one after another in their order.

Owns the threads and the queues. Jobs must not raise; what they do with errors is their business.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue

Job = Callable[[], None]


class OrderedPool:
    """Jobs of different keys run at the same time, up to the number of threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[Job]] = {}  # under the lock; a key is in it while one of its jobs runs
        self._count = 0  # jobs put and not finished; under the lock
        self._runnable: SimpleQueue[Hashable | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """Jobs that are not finished."""
        return self._count

    def put(self, key: Hashable, job: Job) -> None:
        with self._lock:
            self._count += 1
            queue = self._waiting.get(key)
            if queue is None:
                self._waiting[key] = deque([job])
            else:
                queue.append(job)
                return
        self._runnable.put(key)

    def close(self) -> None:
        """Run what was put, then end the threads."""
        for _ in self._threads:
            self._runnable.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (key := self._runnable.get()) is not None:
            while (job := self._next(key)) is not None:
                job()
                with self._lock:
                    self._count -= 1

    def _next(self, key: Hashable) -> Job | None:
        """The next job of the key that this thread holds; None lets go of the key."""
        with self._lock:
            queue = self._waiting[key]
            if queue:
                return queue.popleft()
            del self._waiting[key]
            return None
