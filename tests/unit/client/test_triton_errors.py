"""The client's reading of error texts."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from triton_errors import error_of

TAIL = ' |mblt {"code":"INVALID_ARG","param":"top_p","request_id":"r 1"}|'


def test_tail_is_read_and_taken_off() -> None:
    error = error_of(InferenceServerException(f"in ensemble 'mblt_ensemble', top_p must be at most 1{TAIL}"))
    assert (error.code, error.param, error.request_id, error.ours) == ("INVALID_ARG", "top_p", "r 1", True)
    assert error.line() == "INVALID_ARG (top_p): top_p must be at most 1"


def test_no_tail_keeps_the_whole_text() -> None:
    error = error_of(InferenceServerException("in ensemble 'e', Stub process 'lm_0_0' is not healthy"))
    assert (error.message, error.code, error.ours) == ("Stub process 'lm_0_0' is not healthy", "", False)


def test_grpc_status_becomes_the_code() -> None:
    error = error_of(InferenceServerException("failed to connect\nto all addresses", "StatusCode.UNAVAILABLE", None))
    assert error.line() == "UNAVAILABLE: failed to connect to all addresses"


@pytest.mark.parametrize("tail", [" |mblt {broken}|", " |mblt [1]|", " |mblt {}", '|mblt {"code":"X"}'])
def test_broken_tail_is_text(tail: str) -> None:
    error = error_of(InferenceServerException("bad" + tail))
    assert error.message == "bad" + tail
    assert not error.ours


def test_tail_without_optional_fields() -> None:
    error = error_of(InferenceServerException('gone |mblt {"code":"UNAVAILABLE"}|'))
    assert error.line() == "UNAVAILABLE: gone"
