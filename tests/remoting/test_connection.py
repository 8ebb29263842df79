"""Connections: one pass and one write for each read, single answers, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.frame import FRAME_SIZE_MAX, encode_frame
from kourou.remoting.connection import Connection, Request
from kourou.remoting.connections import Connections
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.testing.lone_connection import LoneConnection, RecordingTransport
from kourou.testing.loop import DeadlockError, run_virtual

ECHO, HOLD, PING = 10, 11, 12


class Setup(LoneConnection):
    """A connection whose handlers echo, hold and count."""

    def __init__(self, **limits: int) -> None:
        self.held: list[Request] = []
        self.pings = 0
        handlers: dict[int, Handler] = {
            ECHO: self.on_echo,
            HOLD: self.held.append,
            PING: self.on_ping,
        }
        super().__init__(handlers, is_accepted=True, **limits)

    def on_echo(self, asked: Request) -> RemotingCommand:
        return response(asked.command, body=asked.command.body)

    def on_ping(self, _: Request) -> None:
        self.pings += 1


def with_setup(test: Callable[[Setup], Coroutine[Any, Any, None]], **limits: int) -> None:
    """Run `test` in virtual time and close its connection."""

    async def main() -> None:
        setup = Setup(**limits)
        await test(setup)
        setup.end()

    run_virtual(main())


def numbered(code: int, opaque: int, body: bytes = b"", *, oneway: bool = False) -> RemotingCommand:
    command = request(code, body=body, oneway=oneway)
    command.opaque = opaque
    return command


def test_the_answers_to_one_read_leave_in_one_write_in_order() -> None:
    async def test(setup: Setup) -> None:
        setup.receive(*(numbered(ECHO, opaque, b"x") for opaque in (7, 8, 9)))

        assert len(setup.transport.writes) == 1
        assert [command.opaque for command in setup.sent()] == [7, 8, 9]
        assert all(command.is_response for command in setup.sent())

    with_setup(test)


def test_frames_sent_in_one_loop_iteration_leave_in_one_write() -> None:
    async def test(setup: Setup) -> None:
        for body in (b"1", b"2", b"3"):
            setup.connection.send(request(ECHO, body=body))
        assert setup.transport.writes == []

        await asyncio.sleep(0)
        assert len(setup.transport.writes) == 1
        assert [command.body for command in setup.sent()] == [b"1", b"2", b"3"]

    with_setup(test)


def test_a_frame_in_two_reads_is_handled_when_complete() -> None:
    async def test(setup: Setup) -> None:
        frame = encode_frame(numbered(ECHO, 1, b"hello"))
        setup.receive_bytes(frame + frame[:10])
        assert len(setup.sent()) == 1

        setup.receive_bytes(frame[10:])
        assert [command.body for command in setup.sent()] == [b"hello", b"hello"]

    with_setup(test)


@settings(max_examples=100, deadline=None)
@given(reads=st.lists(st.binary(max_size=40), max_size=4), is_framed=st.booleans())
def test_arbitrary_bytes_leave_the_connection_open_or_closed(
    reads: list[bytes], *, is_framed: bool
) -> None:
    async def test(setup: Setup) -> None:
        for data in reads:
            if setup.connection.is_open:
                prefix = len(data).to_bytes(4, "big") if is_framed else b""
                setup.receive_bytes(prefix + data)
        assert setup.connection.is_open == (setup.transport.ending == "")

    with_setup(test)


def test_a_oneway_request_is_never_answered() -> None:
    async def test(setup: Setup) -> None:
        setup.receive(numbered(ECHO, 1, oneway=True), numbered(99, 2, oneway=True))

        assert setup.transport.writes == []

    with_setup(test)


def test_a_handler_may_answer_later_but_only_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(setup: Setup) -> None:
        setup.receive(numbered(HOLD, 4))
        assert setup.transport.writes == []

        asked = setup.held[0]
        asked.reply(response(asked.command, body=b"late"))
        asked.reply(response(asked.command, body=b"twice"))
        await asyncio.sleep(0)
        assert [command.body for command in setup.sent()] == [b"late"]
        assert "request.answered_twice code=11" in caplog.text

    with_setup(test)


def test_an_answer_too_large_for_a_frame_becomes_an_error() -> None:
    async def test(setup: Setup) -> None:
        setup.receive(numbered(HOLD, 4))
        setup.held[0].reply(response(setup.held[0].command, body=bytes(FRAME_SIZE_MAX)))
        await asyncio.sleep(0)

        (answer,) = setup.sent()
        assert (answer.code, answer.opaque) == (1, 4)
        assert "exceeds the limit" in (answer.remark or "")

    with_setup(test)


def test_a_closed_connection_ignores_sends_and_received_bytes() -> None:
    async def test(setup: Setup) -> None:
        setup.connection.send(numbered(ECHO, 1, b"before"))
        setup.connection.close("enough")
        setup.connection.send(numbered(ECHO, 2, b"after"))
        setup.receive(numbered(PING, 3))
        await asyncio.sleep(0)

        assert not setup.connection.is_open
        assert [command.body for command in setup.sent()] == [b"before"]
        assert setup.pings == 0
        assert "enough" in repr(setup.connection)

    with_setup(test)


def test_a_close_that_exceeds_drain_timeout_becomes_an_abort() -> None:
    async def test(setup: Setup) -> None:
        setup.connection.close("enough")
        await asyncio.sleep(0.5)
        assert setup.transport.ending == "close"

        await asyncio.sleep(0.6)
        assert setup.transport.ending == "abort"

    with_setup(test, drain_timeout_ms=1_000)


def test_a_close_within_drain_timeout_is_not_aborted() -> None:
    async def main() -> None:
        setup = Setup()
        setup.connection.close("enough")
        setup.connection.connection_lost(None)
        await asyncio.sleep(5)
        assert setup.transport.ending == "close"

    run_virtual(main())


def test_the_sweep_timer_ends_with_the_last_connection() -> None:
    async def main() -> None:
        Setup().connection.connection_lost(None)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match="no timer is set"):
        run_virtual(main())


def test_all_close_callbacks_run_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[Connection] = []

    def fail(_: Connection) -> None:
        raise ValueError("mine")

    async def main() -> None:
        setup = Setup()
        setup.connection.on_closed += [fail, closed.append]
        setup.connection.connection_lost(None)
        assert closed == [setup.connection]

    run_virtual(main())
    assert "connection.callback_failed" in caplog.text


def test_a_read_of_many_slow_requests_is_handled_over_several_iterations() -> None:
    async def main() -> None:
        seconds = count()  # each reading of the time is one second later
        others_turns: list[int] = []
        lone = LoneConnection(
            {ECHO: lambda asked: response(asked.command)}, None, lambda: float(next(seconds))
        )

        async def other() -> None:
            for _ in range(10):
                others_turns.append(len(lone.sent()))
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(other())
        lone.receive(*(numbered(ECHO, opaque) for opaque in range(5)))
        assert [one.opaque for one in lone.sent()] == [0]
        assert not lone.transport.is_reading()
        await task
        assert [one.opaque for one in lone.sent()] == [0, 1, 2, 3, 4]
        assert set(others_turns) == {1, 2, 3, 4, 5}, "other tasks ran after each request"
        assert lone.transport.is_reading()
        lone.end()

    run_virtual(main())


def test_a_connection_closed_between_iterations_handles_no_more_of_its_read() -> None:
    async def main() -> None:
        seconds = count()
        lone = LoneConnection(
            {ECHO: lambda asked: response(asked.command)}, None, lambda: float(next(seconds))
        )
        lone.receive(*(numbered(ECHO, opaque) for opaque in range(5)))
        lone.connection.abort("a test")
        lone.end()
        await asyncio.sleep(1)
        assert [one.opaque for one in lone.sent()] == [0]

    run_virtual(main())


@pytest.mark.parametrize("size", [600, 60_000])
def test_a_server_handles_no_requests_while_its_output_is_unread(size: int) -> None:
    async def test(setup: Setup) -> None:
        transport, connection = setup.transport, setup.connection
        transport.on_write = connection.pause_writing
        frames = [encode_frame(numbered(ECHO, opaque, bytes(size))) for opaque in range(6)]
        setup.receive_bytes(b"".join(frames)[:-1])
        assert not transport.is_reading()
        assert [command.opaque for command in setup.sent()] == [0, 1]
        connection.check_ages(29.0)  # a frame held while output is paused does not age

        connection.resume_writing()
        await asyncio.sleep(0)
        assert [command.opaque for command in setup.sent()] == [0, 1, 2, 3]
        transport.on_write = None
        await asyncio.sleep(60)
        connection.resume_writing()
        await asyncio.sleep(0)
        assert [command.opaque for command in setup.sent()] == [0, 1, 2, 3, 4]
        assert transport.is_reading()
        connection.check_ages(69.0)  # the last frame's age counts from here
        setup.receive_bytes(frames[-1][-1:])
        assert len(setup.sent()) == 6

    with_setup(test, output_pause_bytes=2 * size - 200, frame_timeout_ms=10_000)


def broken_path(connection: Connection, buffer: bytearray, start: int, end: int) -> int:
    """Raise an internal error instead of serving requests."""
    raise ArithmeticError(start)


def test_an_internal_error_in_held_frames_closes_the_connection() -> None:
    async def main() -> None:
        errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        lone = LoneConnection({}, broken_path)
        lone.connection.pause_writing()
        lone.receive(numbered(ECHO, 1))
        assert not errors

        lone.connection.resume_writing()
        await asyncio.sleep(0)

        assert isinstance(errors[0], ArithmeticError)
        assert lone.transport.ending == "abort"
        lone.end()

    run_virtual(main())


def test_without_fast_path_applies_to_connections_still_in_handshake() -> None:
    async def main() -> None:
        connections = Connections(
            lambda _: None, ConnectionLimits(), is_accepting=True, fast_path=broken_path
        )
        connection = connections.create()  # a handshake is in progress here

        connections.disable_fast_path()
        connection.connection_made(RecordingTransport())

        assert connection.fast_path is None
        connection.connection_lost(None)

    run_virtual(main())
