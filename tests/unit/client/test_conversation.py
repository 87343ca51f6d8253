"""A conversation against a scripted server: flags, ids, messages, aborts."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest
import tritonclient.grpc as grpcclient
from scripted_server import PART, WAIT, Fail, ScriptedServer

from conversation import Conversation, abort
from triton_control import Control, Lease
from triton_errors import ServerError
from triton_stream import Turn

START_WANTED = Fail(
    "in ensemble 'mblt_ensemble', inference request for sequence x to model 'lm' must specify the START flag on the "
    "first request of the sequence"
)


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.url) as made:
        yield made


@pytest.fixture
def make(client: grpcclient.InferenceServerClient) -> Callable[..., Conversation]:
    def build(**options: object) -> Conversation:
        sampling = options.pop("sampling", {"temperature": 0.0})
        return Conversation(client, "mblt_ensemble", sampling, **options)  # type: ignore[arg-type]

    return build


def read(turn: Turn) -> str:
    return "".join(chunk.text for chunk in turn)


def flags(server: ScriptedServer) -> list[tuple[bool, bool]]:
    return [(seen.parameters["sequence_start"], seen.parameters["sequence_end"]) for seen in server.turns]


def test_turns_share_one_sequence_and_send_the_whole_conversation(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [["Hel", "lo"], ["again"]]
    talk = make(system="Be brief.", sampling={"temperature": 0.0, "max_tokens": 9})
    for question in ("one", "two"):
        turn = talk.ask(question)
        talk.answered(turn, read(turn))
    talk.end()
    assert flags(server) == [(True, False), (False, False), (False, True)]
    assert len({seen.parameters["sequence_id"] for seen in server.turns}) == 1
    assert server.turns[1].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "two"},
    ]
    assert [seen.sampling["max_tokens"] for seen in server.turns] == [9, 9, 1]
    assert server.turns[0].tensors["stream"] is True


def test_every_request_has_its_own_id_and_token(server: ScriptedServer, make: Callable) -> None:
    talk = make()
    for question in ("one", "two"):
        turn = talk.ask(question)
        talk.answered(turn, read(turn))
    tokens = [seen.parameters["abort_token"] for seen in server.turns]
    ids = [seen.id for seen in server.turns]
    assert len({*tokens, *ids}) == 4
    assert min(map(len, tokens)) >= 32


def test_last_turn_ends_the_sequence_and_leaves_nothing_to_end(server: ScriptedServer, make: Callable) -> None:
    talk = make()
    turn = talk.ask("only", last=True)
    talk.answered(turn, read(turn))
    talk.end()
    assert flags(server) == [(True, True)]


def test_failed_turn_is_forgotten_and_the_next_starts_a_new_sequence(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [["fine"], [Fail('no |mblt {"code":"UNAVAILABLE"}|')], ["fine"]]
    talk = make()
    first = talk.ask("one")
    talk.answered(first, read(first))
    with pytest.raises(ServerError, match="no"):
        read(talk.ask("two"))
    talk.failed()
    read(talk.ask("three"))
    assert flags(server) == [(True, False), (False, False), (True, False)]
    assert server.turns[0].parameters["sequence_id"] != server.turns[2].parameters["sequence_id"]
    assert [message["content"] for message in server.turns[2].messages] == ["one", "fine", "three"]


def test_forgotten_sequence_is_started_again_with_the_same_text(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [["fine"], [START_WANTED], ["back"]]
    talk = make()
    first = talk.ask("one")
    talk.answered(first, read(first))
    turn = talk.ask("two")
    with pytest.raises(ServerError) as raised:
        read(turn)
    second = talk.again(raised.value, turn)
    assert second is not None
    assert read(second) == "back"
    assert flags(server)[2] == (True, False)
    assert server.turns[1].messages == server.turns[2].messages


def test_other_errors_are_not_tried_again(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [[START_WANTED]]
    talk = make()
    turn = talk.ask("one")
    with pytest.raises(ServerError) as raised:
        read(turn)
    assert talk.again(raised.value, turn) is None, "a turn that had START would fail the same way again"


def test_abort_shows_what_names_the_request_and_waits_for_its_end(
    server: ScriptedServer, client: grpcclient.InferenceServerClient, make: Callable
) -> None:
    server.scripts = [["some", WAIT]]
    server.abort_misses = 2
    talk = make()
    turn = talk.ask("long story")
    assert next(turn).text == "some"
    with grpcclient.InferenceServerClient(server.url) as other:
        left = abort(Control(other), turn)
    assert left.finish_reason == "cancelled"
    assert len(server.controls) == 3, "an abort that came too early is repeated"
    assert named(server) == {(turn.request.sequence_id, turn.request.request_id, turn.request.abort_token)}
    assert turn.wait() is None


def test_abort_returns_the_text_that_was_under_way(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [["a", "b", "c", WAIT]]
    turn = make().ask("x")
    assert server.reached.wait(10)
    with grpcclient.InferenceServerClient(server.url) as other:
        left = abort(Control(other), turn)
    assert (left.text, left.output_tokens) == ("abc", 3)


def test_refused_abort_is_an_error(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [[WAIT]]
    server.control_failure = "lm_control is not there"
    turn = make().ask("x")
    with grpcclient.InferenceServerClient(server.url) as other, pytest.raises(ServerError, match="not there"):
        abort(Control(other), turn)
    turn.close()


def test_waiting_has_a_limit_and_can_go_on(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [["a", PART, "b"]]
    turn = make().ask("x")
    assert turn.wait(10).text == "a"
    with pytest.raises(queue.Empty):
        turn.wait(0.01)
    server.go()
    assert turn.wait(10).text == "b"
    assert turn.wait(10) is None


def test_lease_is_asked_for_and_renewed(server: ScriptedServer, make: Callable) -> None:
    server.scripts = [["a", PART, "b"]]
    turn = make(lease_s=1).ask("x")
    with grpcclient.InferenceServerClient(server.url) as other, Lease(Control(other), turn.request):
        assert server.reached.wait(10)
        assert server.controlled.wait(10)
        server.go()
        read(turn)
    assert server.turns[0].parameters["lease_s"] == 1
    assert named(server) == {(turn.request.sequence_id, turn.request.request_id, turn.request.abort_token)}


def test_no_server_is_one_clear_error() -> None:
    with grpcclient.InferenceServerClient("127.0.0.1:1") as client:
        talk = Conversation(client, "mblt_ensemble", {})
        with pytest.raises(ServerError) as raised:
            read(talk.ask("x"))
    assert raised.value.code == "UNAVAILABLE"
    assert "\n" not in raised.value.line()


def named(server: ScriptedServer) -> set[tuple[str, str, str]]:
    """What the control calls named: sequence, request, token."""
    return {seen.named() for seen in server.controls}
