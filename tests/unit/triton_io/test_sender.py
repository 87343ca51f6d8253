from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from triton_python_backend_utils import Logger, Request, TritonError

from triton_mblt.core.errors import InvalidRequest, parse_error
from triton_mblt.triton_io import wire
from triton_mblt.triton_io.cancellation import CancellationPoller
from triton_mblt.triton_io.sender import Lanes, Responder, guarded

LIMIT_S = 10


@pytest.fixture
def request_() -> Request:
    return Request({})


@pytest.fixture
def responder(request_: Request) -> Responder:
    return Responder(request_, "r1")


def say(responder: Responder, text: str, final: bool = False) -> None:
    responder.send([wire.text_tensor("text_output", text)], final=final)


def test_whatever_comes_after_the_final_response_is_dropped(request_: Request, responder: Responder) -> None:
    say(responder, "a")
    say(responder, "b", final=True)
    say(responder, "c")
    say(responder, "d", final=True)
    responder.fail(InvalidRequest("late").info())
    responder.end()
    assert request_.sender.texts() == ["a", "b"]
    assert request_.sender.finals == 1


def test_cancellation_is_not_asked_for_after_the_final_response(request_: Request, responder: Responder) -> None:
    request_.sender.client_left = True
    assert responder.cancelled()
    responder.end()
    assert not responder.cancelled()  # the sender would raise


def test_cancellation_is_not_asked_for_while_the_final_response_leaves(request_: Request, responder: Responder) -> None:
    request_.sender.busy.clear()
    sending = threading.Thread(target=partial(say, responder, "a", True))
    sending.start()
    assert request_.sender.entered.wait(LIMIT_S)
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(responder.cancelled()))
    asking.start()
    asking.join(0.1)
    assert answers == []
    request_.sender.busy.set()
    sending.join(LIMIT_S)
    asking.join(LIMIT_S)
    assert answers == [False]


def boom() -> None:
    raise ZeroDivisionError("a bug")


def refuse() -> None:
    raise InvalidRequest("no", param="top_p")


@pytest.mark.parametrize(("task", "code", "param"), [(boom, "INTERNAL", ""), (refuse, "INVALID_ARG", "top_p")])
def test_what_a_task_raises_is_the_final_response(
    request_: Request, responder: Responder, task: Callable[[], None], code: str, param: str
) -> None:
    Logger.lines.clear()
    guarded(responder, task)
    ((answer, flags),) = request_.sender.sent
    assert answer is not None
    error = answer.error()
    assert error is not None
    info = parse_error(error.message())
    assert info is not None
    assert (info.code, info.param, info.request_id, flags) == (code, param, "r1", 1)
    assert error.code() == getattr(TritonError, code)
    assert any("ZeroDivisionError" in line for line in Logger.lines) is (task is boom)


def test_a_code_that_triton_does_not_know_becomes_the_nearest() -> None:
    error = wire.error_response(InvalidRequest("no").info()).error()
    denied = wire.error_response(
        parse_error('no |mblt {"code":"PERMISSION_DENIED"}|') or InvalidRequest("x").info()
    ).error()
    assert error.code() == denied.code() == TritonError.INVALID_ARG


def test_a_lane_keeps_the_order_of_a_request_and_outlives_a_bug() -> None:
    requests = [Request({}) for _ in range(6)]
    responders = [Responder(request, "r") for request in requests]
    lanes = Lanes(2, "test")
    for key, responder in enumerate(responders):
        if key == 0:
            lanes.put(key, responder, boom)
        for number in range(50):
            lanes.put(key, responder, partial(say, responder, str(number), number == 49))
    lanes.close()
    assert [request.sender.finals for request in requests] == [1] * 6
    assert all(request.sender.texts() == [str(n) for n in range(50)] for request in requests[1:])
    assert len(requests[0].sender.sent) == 1


def test_the_poller_reports_until_the_end_and_only_who_left() -> None:
    stays, leaves = Request({}), Request({})
    poller = CancellationPoller(0.001)
    twice = threading.Event()
    calls: list[str] = []

    def left() -> None:
        calls.append("left")
        if len(calls) == 2:
            twice.set()

    poller.watch(Responder(stays, "stays"), partial(calls.append, "stays"))
    responder = Responder(leaves, "leaves")
    poller.watch(responder, left)
    leaves.sender.client_left = True
    assert twice.wait(LIMIT_S)
    responder.end()
    poller.close()
    assert set(calls) == {"left"}


def test_the_poller_outlives_a_callback_that_fails() -> None:
    poller = CancellationPoller(0.001)
    bad, good = Request({}), Request({})
    bad.sender.client_left = good.sender.client_left = True
    seen = threading.Event()
    poller.watch(Responder(bad, "bad"), boom)
    poller.watch(Responder(good, "good"), seen.set)
    assert seen.wait(LIMIT_S)
    poller.close()
