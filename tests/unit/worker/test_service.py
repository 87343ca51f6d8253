"""The LM service with a real worker process whose engine is computed by hand."""

from __future__ import annotations

import os
import signal

import pytest
from fake_engine import FAULTY, HANG, MISSING, NEVER, RAISE, SLOW, VOCAB, answer
from lm_service import LIMIT_S, Collector, ask, fake_settings, request, running

from triton_mblt.core.errors import ConfigError, InvalidRequest, MbltError, Overloaded, WorkerRestarting
from triton_mblt.core.events import Output
from triton_mblt.core.request import SequenceKey

FOREVER = 10**6


def test_outputs_come_in_order_and_end_once() -> None:
    with running() as service:
        askers = [ask(service, [10, 20 + i], max_tokens=50, key=i) for i in range(1, 9)]
        for i, asker in enumerate(askers, 1):
            assert asker.wait_final().finish_reason == "length"
            assert asker.tokens == answer([10, 20 + i], 50)
            assert asker.finals == 1


def test_a_python_without_pidfds_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with running() as service:
        assert ask(service, [10]).code is None


def test_a_prompt_of_a_megabyte_passes() -> None:
    with running() as service:
        tokens = [7] * 300_000
        asker = ask(service, tokens)
        asker.wait_final()
        assert asker.tokens == answer(tokens, 5)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "empty"),
        ([10, VOCAB], f"vocabulary ends at {VOCAB - 1}"),
        ([10, -1], "token id -1"),
        ([7] * 1_000_001, "max_model_len is 1000000"),
    ],
)
def test_the_door_refuses_a_prompt_and_names_field_and_limit(tokens: list[int], words: str) -> None:
    with running() as service:
        with pytest.raises(InvalidRequest, match=words) as caught:
            ask(service, tokens)
        assert caught.value.param == "prompt"
        assert service.stats()["open_requests"] == 0


def test_a_prompt_that_came_before_the_model_is_checked_when_it_is_there() -> None:
    with running(fake_settings(model=SLOW), wait=False) as service:
        bad, good = ask(service, [10, VOCAB]), ask(service, [10])
        assert bad.code == "INVALID_ARG"
        assert good.code is None
        assert good.tokens == answer([10], 5)


def test_requests_wait_for_a_worker_that_loads() -> None:
    with running(fake_settings(model=SLOW), wait=False) as service:
        assert service.model is None
        askers = [ask(service, [10 + i]) for i in range(4)]
        assert service.stats()["waiting_requests"] == 4
        assert [asker.code for asker in askers] == [None] * 4
        assert service.model is not None


def test_the_queue_is_bounded() -> None:
    with running(fake_settings(model=NEVER, max_queue=2), wait=False) as service:
        waiting = [ask(service, [10]), ask(service, [11])]
        with pytest.raises(Overloaded, match="max_queue is 2"):
            ask(service, [12])
        service.close()
        assert [asker.code for asker in waiting] == ["UNAVAILABLE"] * 2


def test_cancel_while_waiting_ends_at_once_and_only_once() -> None:
    with running(fake_settings(model=NEVER), wait=False) as service:
        collector = Collector()
        wanted = request(service, [10])
        service.submit(wanted, collector)
        service.cancel(wanted.handle, "the client left")
        service.cancel(wanted.handle, "the client left")
        assert [(o.error.code, o.error.message) for o in collector.outputs if o.error] == [
            ("CANCELLED", "the client left")
        ]


def test_cancel_of_a_running_request_is_idempotent() -> None:
    with running() as service:
        collector = Collector()
        wanted = request(service, [10], max_tokens=FOREVER)
        service.submit(wanted, collector)
        collector.wait_some(3)
        for _ in range(3):
            service.cancel(wanted.handle, "the client left")
        assert collector.code == "CANCELLED"
        service.cancel(wanted.handle, "late")
        assert ask(service, [11]).code is None
        assert collector.finals == 1
        assert service.stats()["open_requests"] == 0


def test_abort_needs_the_right_name_and_token() -> None:
    with running() as service:
        key = SequenceKey.of(5)
        asker = ask(service, [10], max_tokens=FOREVER, key=5, abort_token="secret")
        asker.wait_some()
        assert not service.abort(key, "r", "wrong")
        assert not service.abort(key, "r", "")
        assert not service.abort(SequenceKey.of("5"), "r", "secret")
        assert not service.abort(key, "other", "secret")
        with pytest.raises(InvalidRequest):
            service.abort(None, "", "secret")
        assert asker.finals == 0
        assert service.abort(key, "r", "secret")
        assert asker.code == "CANCELLED"
        assert not service.abort(key, "r", "secret")


def test_a_request_without_token_cannot_be_aborted_by_name() -> None:
    with running() as service:
        asker = ask(service, [10], max_tokens=FOREVER, key=5)
        asker.wait_some()
        assert not service.abort(SequenceKey.of(5), "r", "")
        assert asker.finals == 0


def test_a_lease_that_is_not_renewed_cancels() -> None:
    with running() as service:
        leased = ask(service, [10], max_tokens=FOREVER, lease_s=0.2)
        free = ask(service, [11], max_tokens=FOREVER, key=2)
        error = leased.wait_final().error
        assert error is not None
        assert (error.code, "lease of 0.2 s" in error.message) == ("CANCELLED", True)
        assert free.finals == 0


def test_a_renewed_lease_goes_on() -> None:
    with running() as service:
        asker = ask(service, [10], max_tokens=FOREVER, abort_token="t", lease_s=0.3)
        assert service.renew(SequenceKey.of(1), "r", "t", 1000.0)
        assert not service.renew(SequenceKey.of(1), "r", "wrong", 0.001)
        witness = ask(service, [11], max_tokens=FOREVER, key=2, lease_s=0.6)  # ends after the first lease would have
        assert witness.code == "CANCELLED"
        assert asker.finals == 0
        assert service.renew(SequenceKey.of(1), "r", "t", 0.01)
        assert asker.code == "CANCELLED"
        assert not service.renew(SequenceKey.of(1), "r", "t", 5.0)


@pytest.mark.parametrize("lease_s", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_nonsense_lease_is_refused(lease_s: float) -> None:
    with running() as service, pytest.raises(InvalidRequest) as caught:
        ask(service, [10], lease_s=lease_s)
    assert caught.value.param == "lease_s"


def test_a_permanent_load_failure_is_reported_and_refuses_requests() -> None:
    with running(fake_settings(model=MISSING), wait=False) as service:
        with pytest.raises(ConfigError, match="no such model folder") as caught:
            service.wait_ready(LIMIT_S)
        assert caught.value.param == "model"
        with pytest.raises(MbltError, match="no such model folder") as refused:
            ask(service, [10])
        assert refused.value.code == "UNAVAILABLE"
        worker = service.stats()["workers"][0]
        assert (worker["state"], worker["restarts"]) == ("failed", 0)


def test_waiting_requests_end_with_a_permanent_load_failure() -> None:
    with running(fake_settings(model=MISSING), wait=False) as service:
        error = ask(service, [10]).wait_final().error
        assert error is not None
        assert (error.code, "no such model folder" in error.message) == ("UNAVAILABLE", True)


def test_a_transient_load_failure_is_tried_again(tmp_path) -> None:
    with running(fake_settings(model=f"count:{tmp_path / 'mark'}"), wait=False) as service:
        service.wait_ready(LIMIT_S)
        assert service.stats()["workers"][0]["restarts"] == 1
        assert ask(service, [10]).code is None


@pytest.mark.parametrize(("model", "reason"), [(FAULTY, "the device is busy"), ("buggy", "KeyError: 'a bug'")])
def test_waiting_for_a_worker_that_keeps_failing_says_why(model: str, reason: str) -> None:
    with running(fake_settings(model=model), wait=False) as service:
        assert reason in str(ask(service, [10]).wait_final().error)
        with pytest.raises(WorkerRestarting, match=reason):
            service.wait_ready(0.01)


def test_a_worker_that_loads_for_too_long_is_given_up() -> None:
    with running(fake_settings(model=NEVER, worker_start_limit_s=0.2), wait=False) as service:
        error = ask(service, [10]).wait_final().error
        assert error is not None
        assert "did not finish in 0.2 s" in error.message


def test_drain_refuses_new_requests_and_lets_open_ones_end() -> None:
    with running() as service:
        asker = ask(service, [10], max_tokens=30)
        service.drain()
        with pytest.raises(WorkerRestarting, match="draining"):
            ask(service, [11])
        assert asker.code is None
        assert service.stats()["draining"]


def test_a_drain_with_a_limit_ends_what_is_open_then() -> None:
    with running() as service:
        asker = ask(service, [10], max_tokens=FOREVER)
        service.drain(0.2)
        error = asker.wait_final().error
        assert error is not None
        assert (error.code, error.message, asker.finals) == ("UNAVAILABLE", "the server is stopping", 1)
        stats = service.stats()
        assert (stats["open_requests"], stats["workers"][0]["state"]) == (0, "ready")


@pytest.mark.parametrize("limit_s", [-1.0, float("nan"), 1e9])
def test_a_drain_with_a_nonsense_limit_is_refused(limit_s: float) -> None:
    with running(fake_settings(model=NEVER), wait=False) as service:
        with pytest.raises(InvalidRequest) as caught:
            service.drain(limit_s)
        assert caught.value.param == "limit_s"
        assert not service.stats()["draining"]


def test_close_fails_open_requests_once_and_leaves_no_process() -> None:
    with running() as service:
        asker = ask(service, [10], max_tokens=FOREVER)
        asker.wait_some()
        pid = service.stats()["workers"][0]["pid"]
        service.close()
        service.close()
        assert (asker.code, asker.finals) == ("UNAVAILABLE", 1)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(WorkerRestarting, match="stopping"):
            ask(service, [11])


def test_close_ends_a_worker_that_hangs() -> None:
    with running(fake_settings(drain_s=0.1)) as service:
        asker = ask(service, [HANG])
        pid = service.stats(timeout_s=0.2)["workers"][0]["pid"]
        service.close()
        assert asker.code == "UNAVAILABLE"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_stats_show_the_engine_and_do_not_wait_for_one_that_hangs() -> None:
    with running() as service:
        ask(service, [10]).wait_final()
        stats = service.stats()
        assert stats["workers"][0]["engine"]["steps"] >= 5
        assert (stats["model"]["vocab_size"], stats["open_requests"], stats["draining"]) == (VOCAB, 0, False)
        hanging = ask(service, [HANG])
        while (stats := service.stats(timeout_s=0.2))["workers"][0]["engine"] is not None:
            pass  # asked before the step that hangs
        assert (stats["open_requests"], hanging.finals) == (1, 0)
        os.kill(stats["workers"][0]["pid"], signal.SIGKILL)
        assert hanging.code == "UNAVAILABLE"


def test_a_callback_that_raises_costs_only_its_own_request() -> None:
    calls = []

    def broken(output: Output) -> None:
        calls.append(output)
        raise RuntimeError("the sender is broken")

    with running() as service:
        good = ask(service, [10], max_tokens=100)
        service.submit(request(service, [11], max_tokens=FOREVER, key=2), broken)
        assert good.code is None
        assert len(calls) == 1
        assert service.stats()["open_requests"] == 0
        assert service.stats()["workers"][0]["engine"]["open"] == 0


def test_an_engine_bug_ends_the_worker_and_every_request_at_it() -> None:
    with running() as service:
        neighbour = ask(service, [10], max_tokens=FOREVER)
        neighbour.wait_some()
        culprit = ask(service, [RAISE], key=2)
        assert (culprit.code, neighbour.code) == ("UNAVAILABLE", "UNAVAILABLE")
        error = culprit.wait_final().error
        assert error is not None
        assert "exit code 1" in error.message
        assert ask(service, [11]).code is None
