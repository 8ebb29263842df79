"""Each failure of a handler is answered, and only internal errors are logged."""

from __future__ import annotations

import asyncio

import pytest

from kourou.errors import (
    InvalidTopicError,
    MalformedBodyError,
    RemoteError,
    StoreError,
    TopicNotFoundError,
)
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.request_spec import RequestSpec
from kourou.protocol.unserved import ALL_REQUESTS
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Dispatcher, Handler
from kourou.remoting.log_rate import BURST
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer


def answer_of(handler: Handler, code: int = 10) -> RemotingCommand:
    """Return the answer of a dispatcher that has `handler` for code 10."""
    peer = FakePeer()
    Dispatcher({10: handler})(peer.request(code))
    (answer,) = peer.sent
    assert answer.is_response
    return answer


def failing(error: Exception) -> Handler:
    def handler(_: Request) -> RemotingCommand:
        raise error

    return handler


def test_the_handler_s_result_is_the_answer() -> None:
    answer = answer_of(lambda asked: response(asked.command, 0, body=b"yes"))

    assert (answer.code, answer.body) == (0, b"yes")


def test_an_unknown_code_is_answered_not_supported() -> None:
    async def main() -> None:
        answer = answer_of(failing(AssertionError("not asked")), code=4711)
        assert (answer.code, answer.remark) == (3, " request type 4711 not supported")

    run_virtual(main())


@pytest.mark.parametrize(
    ("code", "name"), [(200050, "POP_MESSAGE (200050)"), (4711, "request 4711")]
)
@pytest.mark.parametrize("is_oneway", [False, True])
def test_unsupported_codes_are_logged_at_a_limited_rate(
    code: int, name: str, is_oneway: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        dispatcher = Dispatcher({})
        peer = FakePeer()
        for _ in range(100):
            dispatcher(peer.request(code, oneway=is_oneway))
        assert len(caplog.records) == BURST
        assert f"request.not_supported code={name} peer=" in caplog.text
        await asyncio.sleep(1)
        dispatcher(peer.request(code))
        assert f"suppressed={100 - BURST}" in caplog.text

    run_virtual(main())


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (TopicNotFoundError(17, "no such topic"), 17, "no such topic"),
        (RemoteError(4242, "odd"), 4242, "odd"),
        (MalformedBodyError("the body is not JSON"), 1, "the body is not JSON"),
        (InvalidTopicError("the topic is blank"), 1, "the topic is blank"),
    ],
)
def test_an_error_caused_by_the_peer_is_answered_and_not_logged(
    error: Exception, code: int, remark: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_of(failing(error))

    assert (answer.code, answer.remark) == (code, remark)
    assert not caplog.records


@pytest.mark.parametrize("error", [KeyError("mine"), StoreError("disk gone")])
def test_an_internal_error_is_answered_and_logged_once_with_its_traceback(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_of(failing(error))

    assert (answer.code, answer.remark) == (1, f"{type(error).__name__}: {error}")
    (record,) = caplog.records
    assert record.getMessage() == "request.failed code=10"
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_handler_that_fails_after_answering_answers_once() -> None:
    def handler(asked: Request) -> RemotingCommand | None:
        asked.reply(response(asked.command, body=b"done"))
        raise MalformedBodyError("too late")

    assert answer_of(handler).body == b"done"


def test_a_failing_oneway_request_is_not_answered() -> None:
    peer = FakePeer()
    dispatcher = Dispatcher({10: failing(TopicNotFoundError(17, "no such topic"))})
    dispatcher(peer.request(10, oneway=True))

    assert peer.sent == []


@pytest.mark.parametrize(
    ("version", "is_oneway", "codes"), [(476, False, [1500]), (475, False, [0]), (476, True, [])]
)
def test_a_leaving_server_sends_go_away_to_peers_that_support_it(
    version: int, is_oneway: bool, codes: list[int]
) -> None:
    served: list[Request] = []

    def handler(asked: Request) -> RemotingCommand:
        served.append(asked)
        return response(asked.command)

    dispatcher = Dispatcher({10: handler})
    dispatcher.is_shutting_down = True
    peer = FakePeer()
    asked = peer.request(10)
    asked.command.version = version
    asked.command.flag = 2 if is_oneway else 0
    dispatcher(asked)

    assert [answer.code for answer in peer.sent] == codes
    assert len(served) == (codes != [1500])


@pytest.mark.parametrize("spec", ALL_REQUESTS.values(), ids=lambda spec: spec.code.name)
def test_a_body_up_to_the_limit_of_its_code_is_served_and_a_larger_one_refused(
    spec: RequestSpec,
) -> None:
    sizes: list[int] = []
    peer = FakePeer()
    dispatch = Dispatcher({spec.code: lambda asked: sizes.append(len(asked.command.body))})

    dispatch(peer.request(spec.code, body=bytes(spec.body_bytes_max)))
    dispatch(peer.request(spec.code, body=bytes(spec.body_bytes_max + 1)))

    assert sizes == [spec.body_bytes_max]
    (answer,) = peer.sent
    assert answer.code == 29
    assert str(answer.remark).startswith(f"{spec.code.name} ({spec.code.value}) with a body of ")
    assert f"{spec.body_bytes_max + 1} bytes: the limit is {spec.body_bytes_max};" in str(
        answer.remark
    )
