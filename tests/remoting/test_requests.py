"""Requests over one connection: each ends by its answer, its timeout or the connection's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.errors import (
    ConnectionLostError,
    FrameTooLargeError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from kourou.protocol.command import request, response
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual

ECHO, PING = 10, 12


def with_client(test: Callable[[LoneConnection], Coroutine[Any, Any, None]], **limits: int) -> None:
    """Run `test` in virtual time on the client's side and close its connection."""

    async def main() -> None:
        handlers = {ECHO: lambda asked: response(asked.command, body=asked.command.body)}
        setup = LoneConnection(handlers, is_accepted=False, **limits)
        await test(setup)
        setup.end()

    run_virtual(main())


def test_each_request_has_its_own_opaque_and_answer() -> None:
    async def test(setup: LoneConnection) -> None:
        asking = [
            asyncio.ensure_future(setup.connection.request(request(ECHO), 3)) for _ in range(3)
        ]
        await asyncio.sleep(0.001)
        sent = setup.sent()
        assert [command.opaque for command in sent] == [0, 1, 2]

        setup.receive(*(response(to, body=b"%d" % to.opaque) for to in reversed(sent)))
        answers = await asyncio.gather(*asking)
        assert [answer.body for answer in answers] == [b"0", b"1", b"2"]

    with_client(test)


def test_both_sides_may_use_the_same_opaque_at_once() -> None:
    async def test(setup: LoneConnection) -> None:
        asking = asyncio.ensure_future(setup.connection.request(request(PING), 3))
        await asyncio.sleep(0.001)
        theirs = request(ECHO, body=b"theirs")
        theirs.opaque = setup.sent()[0].opaque
        setup.receive(theirs, response(setup.sent()[0], body=b"ours"))

        assert (await asking).body == b"ours"
        assert setup.sent()[1].body == b"theirs"

    with_client(test)


def test_a_request_times_out_and_its_late_answer_is_dropped() -> None:
    async def test(setup: LoneConnection) -> None:
        with pytest.raises(RequestTimeoutError, match=r"10\.0\.0\.2:5 .*\(10\) within 3 s"):
            await setup.connection.request(request(ECHO), 3)
        assert asyncio.get_running_loop().time() == pytest.approx(3)

        setup.receive(response(setup.sent()[0]))
        assert setup.connection.is_open

    with_client(test)


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async def test(setup: LoneConnection) -> None:
        asking = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert len(setup.connection.pending) == 0
        setup.receive(response(setup.sent()[0]))
        assert setup.connection.is_open

    with_client(test)


def test_too_many_requests_are_refused_before_they_are_sent() -> None:
    async def test(setup: LoneConnection) -> None:
        first = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(0.001)
        with pytest.raises(TooManyRequestsError, match="requests_waiting_max") as caught:
            await setup.connection.request(request(ECHO), 3)
        assert caught.value.retriable
        assert len(setup.sent()) == 1

        setup.receive(response(setup.sent()[0]))
        await first

    with_client(test, requests_waiting_max=1)


def test_a_request_too_large_for_a_frame_is_refused_and_not_pending() -> None:
    async def test(setup: LoneConnection) -> None:
        with pytest.raises(FrameTooLargeError):
            await setup.connection.request(request(ECHO, body=bytes(FRAME_SIZE_MAX)), 3)

        assert len(setup.connection.pending) == 0
        assert setup.connection.is_open

    with_client(test)


def test_pending_requests_fail_immediately_when_the_connection_ends() -> None:
    async def test(setup: LoneConnection) -> None:
        asking = asyncio.ensure_future(setup.connection.request(request(ECHO), 30))
        await asyncio.sleep(0.001)
        setup.connection.connection_lost(ConnectionResetError("reset by peer"))

        with pytest.raises(ConnectionLostError, match="reset by peer"):
            await asking
        with pytest.raises(ConnectionLostError, match="reset by peer"):
            await setup.connection.request(request(ECHO), 30)
        with pytest.raises(ConnectionLostError):
            await setup.connection.oneway(request(ECHO), 30)
        assert asyncio.get_running_loop().time() < 1

    with_client(test)


def test_a_clients_request_waits_until_the_peer_reads() -> None:
    async def test(setup: LoneConnection) -> None:
        setup.connection.pause_writing()
        assert setup.transport.is_reading()
        asking = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(1)
        assert setup.transport.writes == []

        setup.connection.resume_writing()
        await asyncio.sleep(0.001)
        setup.receive(response(setup.sent()[0]))
        await asking

    with_client(test)


def test_waiting_requests_are_paused_again_when_output_refills() -> None:
    async def test(setup: LoneConnection) -> None:
        setup.connection.pause_writing()
        setup.transport.on_write = setup.connection.pause_writing
        asking = [
            asyncio.ensure_future(setup.connection.request(request(ECHO, body=bytes(1_000)), 3))
            for _ in range(3)
        ]
        for count in (1, 2, 3):
            setup.connection.resume_writing()
            await asyncio.sleep(0.001)
            assert len(setup.sent()) == count
        setup.receive(*map(response, setup.sent()))
        await asyncio.gather(*asking)

    with_client(test, output_pause_bytes=1_000)


def test_a_request_waiting_to_be_sent_fails_when_the_connection_ends() -> None:
    async def test(setup: LoneConnection) -> None:
        setup.connection.pause_writing()
        asking = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(1)
        setup.connection.abort("gone")
        with pytest.raises(ConnectionLostError, match="gone"):
            await asking
        assert asyncio.get_running_loop().time() < 1.1

    with_client(test)


def test_a_request_that_times_out_unsent_reports_it_was_not_sent() -> None:
    async def test(setup: LoneConnection) -> None:
        setup.connection.pause_writing()
        with pytest.raises(RequestTimeoutError, match="the request was not sent"):
            await setup.connection.request(request(ECHO), 3)
        assert setup.transport.writes == []

    with_client(test)
