"""Parts of the service that need no process: the open request's one end, the lease clock, the restart delay."""

from __future__ import annotations

import threading

import pytest
from lm_service import LIMIT_S, fake_settings

from triton_mblt.core.errors import Cancelled, WorkerRestarting
from triton_mblt.core.events import Output
from triton_mblt.core.request import GenerateRequest, OutputOptions, SequenceKey
from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.worker.leases import LeaseClock
from triton_mblt.worker.open_request import Deliver, OpenRequest
from triton_mblt.worker.supervisor import restart_delay_s


def open_request(deliver: Deliver) -> OpenRequest:
    request = GenerateRequest(
        handle=7, request_id="r", key=SequenceKey.of(1), start=True, end=True, prompt=bytes(12),
        sampling=SamplingParams(), outputs=OutputOptions(),
    )  # fmt: skip
    return OpenRequest(request, deliver, "", 0.0)


def test_nothing_follows_the_final_output() -> None:
    got: list[Output] = []
    record = open_request(got.append)
    record.give(Output(7, "a", (1,)))
    record.give(record.failure(Cancelled("enough")))
    record.give(Output(7, "b", (2,)))
    record.give(record.failure(WorkerRestarting("late")))
    assert [output.text for output in got] == ["a", ""]
    assert got[1].error is not None
    assert (got[1].error.code, got[1].error.request_id, got[1].num_input_tokens) == ("CANCELLED", "r", 3)


def test_an_end_from_another_thread_waits_for_the_output_that_is_being_delivered() -> None:
    inside, leave = threading.Event(), threading.Event()
    got: list[str] = []

    def slow(output: Output) -> None:
        if not output.final:
            inside.set()
            assert leave.wait(LIMIT_S)
        got.append("final" if output.final else "piece")

    record = open_request(slow)
    piece = threading.Thread(target=record.give, args=(Output(7, "a", (1,)),))
    piece.start()
    assert inside.wait(LIMIT_S)
    end = threading.Thread(target=record.give, args=(record.failure(Cancelled("now")),))
    end.start()
    end.join(0.05)
    assert got == []
    leave.set()
    piece.join(LIMIT_S)
    end.join(LIMIT_S)
    assert got == ["piece", "final"]


def test_a_request_whose_callback_raised_gets_no_more() -> None:
    got: list[Output] = []

    def broken(output: Output) -> None:
        got.append(output)
        raise RuntimeError

    record = open_request(broken)
    with pytest.raises(RuntimeError):
        record.give(Output(7, "a", (1,)))
    record.give(Output(7, "b", (2,)))
    assert len(got) == 1


def test_leases_expire_in_order_and_only_when_not_dropped_or_set_again() -> None:
    expired: list[int] = []
    over = threading.Event()

    def on_expiry(handle: int) -> None:
        expired.append(handle)
        if handle == 4:
            over.set()

    clock = LeaseClock(on_expiry)
    clock.set(1, 0.01)
    clock.set(2, 0.02)
    clock.set(3, 1000.0)
    clock.drop(1)
    clock.start()
    clock.set(5, 0.04)
    clock.set(5, 1000.0)
    clock.set(4, 0.08)
    assert over.wait(LIMIT_S)
    clock.close()
    assert expired == [2, 4]


def test_restart_delays_double_up_to_the_limit() -> None:
    settings = fake_settings(worker_backoff_s=0.5, worker_backoff_max_s=3.0)
    assert [restart_delay_s(settings, n) for n in range(7)] == [0, 0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert restart_delay_s(settings, 10_000) == 3.0
