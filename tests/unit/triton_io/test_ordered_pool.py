from __future__ import annotations

import threading
from functools import partial

from triton_mblt.triton_io.ordered_pool import OrderedPool

LIMIT_S = 10


def test_jobs_of_a_key_keep_their_order_and_none_is_lost() -> None:
    pool = OrderedPool(4, "test")
    done: dict[int, list[int]] = {key: [] for key in range(10)}
    for number in range(200):
        for key, numbers in done.items():
            pool.put(key, partial(numbers.append, number))
    pool.close()
    assert all(numbers == list(range(200)) for numbers in done.values())
    assert pool.count == 0


def test_a_slow_job_holds_its_own_key_only() -> None:
    pool = OrderedPool(2, "test")
    gate, passed, order = threading.Event(), threading.Event(), []
    pool.put("slow", partial(gate.wait, LIMIT_S))
    pool.put("slow", partial(order.append, "behind"))
    pool.put("quick", passed.set)
    assert passed.wait(LIMIT_S)
    assert order == []
    assert pool.count >= 2
    gate.set()
    pool.close()
    assert order == ["behind"]


def test_jobs_of_one_key_never_overlap() -> None:
    pool = OrderedPool(4, "test")
    inside, worst = [], []

    def job() -> None:
        inside.append(1)
        worst.append(len(inside))
        inside.pop()

    for _ in range(500):
        pool.put("one", job)
    pool.close()
    assert set(worst) == {1}
