"""A connection: one pass and one write a read, requests both ways, and how all of it ends."""

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
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.frame import FRAME_SIZE_MAX, decode_frame, encode_frame
from kourou.remoting.connection import Connection, Request
from kourou.remoting.connections import Connections
from kourou.remoting.dispatch import Dispatcher, Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.testing.loop import run_virtual

ECHO, HOLD, PING = 10, 11, 12


class RecordingTransport(asyncio.Transport):
    """Keeps each write; pretends that `waiting_bytes` wait for the peer to read."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.2", 5), "sockname": ("10.0.0.1", 6)})
        self.writes: list[bytes] = []
        self.waiting_bytes = 0
        self.is_read_paused = False
        self.ending = ""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_read_paused = True

    def resume_reading(self) -> None:
        self.is_read_paused = False

    def close(self) -> None:
        self.ending = self.ending or "close"

    def abort(self) -> None:
        self.ending = "abort"


class Setup:
    """One connection on a recording transport."""

    def __init__(self, *, is_accepted: bool = True, **limits: int) -> None:
        self.held: list[Request] = []
        self.pings = 0
        handlers: dict[int, Handler] = {ECHO: self.on_echo, HOLD: self.held.append, PING: self.ping}
        self.connections = Connections(
            Dispatcher(handlers), ConnectionLimits(**limits), is_accepting=is_accepted
        )
        self.connection: Connection = self.connections.make()
        self.transport = RecordingTransport()
        self.connection.connection_made(self.transport)

    def on_echo(self, asked: Request) -> RemotingCommand:
        return response(asked.command, body=asked.command.body)

    def ping(self, _: Request) -> None:
        self.pings += 1

    def receive(self, *commands: RemotingCommand) -> None:
        """Let the frames of `commands` arrive in one read."""
        self.receive_bytes(b"".join(map(encode_frame, commands)))

    def receive_bytes(self, data: bytes) -> None:
        space = self.connection.get_buffer(-1)
        space[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def sent(self) -> list[RemotingCommand]:
        """Return all frames written so far."""
        stream = b"".join(self.transport.writes)
        found = []
        while stream:
            end = 4 + int.from_bytes(stream[:4], "big")
            found.append(decode_frame(stream[4:end]))
            stream = stream[end:]
        return found


def with_setup(
    test: Callable[[Setup], Coroutine[Any, Any, None]], *, is_accepted: bool = True, **limits: int
) -> None:
    """Run `test` in virtual time and end its connection."""

    async def main() -> None:
        setup = Setup(is_accepted=is_accepted, **limits)
        await test(setup)
        setup.connection.abort("the test is over")
        setup.connection.connection_lost(None)

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


def test_what_is_sent_in_one_turn_of_the_loop_leaves_in_one_write() -> None:
    async def test(setup: Setup) -> None:
        for body in (b"1", b"2", b"3"):
            setup.connection.send(request(ECHO, body=body))
        assert setup.transport.writes == []

        await asyncio.sleep(0)
        assert len(setup.transport.writes) == 1
        assert [command.body for command in setup.sent()] == [b"1", b"2", b"3"]

    with_setup(test)


def test_a_frame_in_two_reads_is_handled_once_it_is_whole() -> None:
    async def test(setup: Setup) -> None:
        frame = encode_frame(numbered(ECHO, 1, b"hello"))
        setup.receive_bytes(frame + frame[:10])
        assert len(setup.sent()) == 1

        setup.receive_bytes(frame[10:])
        assert [command.body for command in setup.sent()] == [b"hello", b"hello"]

    with_setup(test)


def test_a_oneway_request_is_never_answered() -> None:
    async def test(setup: Setup) -> None:
        setup.receive(numbered(ECHO, 1, oneway=True), numbered(99, 2, oneway=True))

        assert setup.transport.writes == []

    with_setup(test)


def test_a_handler_may_answer_later_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
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


def test_requests_get_opaques_of_their_own_and_their_own_answers() -> None:
    async def test(setup: Setup) -> None:
        asking = [
            asyncio.ensure_future(setup.connection.request(request(ECHO), 3)) for _ in range(3)
        ]
        await asyncio.sleep(0.001)
        sent = setup.sent()
        assert [command.opaque for command in sent] == [0, 1, 2]

        setup.receive(*(response(to, body=b"%d" % to.opaque) for to in reversed(sent)))
        answers = await asyncio.gather(*asking)
        assert [answer.body for answer in answers] == [b"0", b"1", b"2"]

    with_setup(test, is_accepted=False)


def test_both_sides_may_use_the_same_opaque_at_once() -> None:
    async def test(setup: Setup) -> None:
        asking = asyncio.ensure_future(setup.connection.request(request(PING), 3))
        await asyncio.sleep(0.001)
        setup.receive(numbered(ECHO, 0, b"theirs"), response(setup.sent()[0], body=b"ours"))

        assert (await asking).body == b"ours"
        assert setup.sent()[1].body == b"theirs"

    with_setup(test)


def test_a_request_times_out_and_its_late_answer_is_dropped() -> None:
    async def test(setup: Setup) -> None:
        with pytest.raises(RequestTimeoutError, match=r"10\.0\.0\.2:5 .*\(10\) within 3 s"):
            await setup.connection.request(request(ECHO), 3)
        assert asyncio.get_running_loop().time() == pytest.approx(3)

        setup.receive(response(setup.sent()[0]))
        assert setup.connection.is_open

    with_setup(test)


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async def test(setup: Setup) -> None:
        asking = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert len(setup.connection._pending) == 0
        setup.receive(response(setup.sent()[0]))
        assert setup.connection.is_open

    with_setup(test)


def test_too_many_requests_are_refused_before_they_are_sent() -> None:
    async def test(setup: Setup) -> None:
        first = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(0.001)
        with pytest.raises(TooManyRequestsError, match="pending_requests_max") as caught:
            await setup.connection.request(request(ECHO), 3)
        assert caught.value.retriable
        assert len(setup.sent()) == 1

        setup.receive(response(setup.sent()[0]))
        await first

    with_setup(test, pending_requests_max=1)


def test_a_request_too_large_for_a_frame_is_refused_and_forgotten() -> None:
    async def test(setup: Setup) -> None:
        with pytest.raises(FrameTooLargeError):
            await setup.connection.request(request(ECHO, body=bytes(FRAME_SIZE_MAX)), 3)

        assert len(setup.connection._pending) == 0
        assert setup.connection.is_open

    with_setup(test)


def test_pending_requests_fail_at_once_when_the_connection_ends() -> None:
    async def test(setup: Setup) -> None:
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

    async def main() -> None:
        await test(Setup())

    run_virtual(main())


def test_a_closed_connection_ignores_what_is_sent_and_received() -> None:
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


def test_a_close_that_does_not_end_becomes_an_abort() -> None:
    async def test(setup: Setup) -> None:
        setup.connection.close("enough")
        await asyncio.sleep(0.5)
        assert setup.transport.ending == "close"

        await asyncio.sleep(0.6)
        assert setup.transport.ending == "abort"

    with_setup(test, drain_timeout_ms=1_000)


def test_all_callbacks_hear_of_the_end_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Connection] = []

    def fail(_: Connection) -> None:
        raise ValueError("mine")

    async def main() -> None:
        setup = Setup()
        setup.connection.on_closed += [fail, heard.append]
        setup.connection.connection_lost(None)
        assert heard == [setup.connection]

    run_virtual(main())
    assert "connection.callback_failed" in caplog.text


def test_a_server_takes_no_more_requests_while_its_answers_are_not_read() -> None:
    async def test(setup: Setup) -> None:
        transport, connection = setup.transport, setup.connection
        write = transport.write

        def write_and_fill(data: bytes | bytearray | memoryview[Any]) -> None:
            write(data)
            connection.pause_writing()

        transport.write = write_and_fill  # type: ignore[method-assign]
        setup.receive(*(numbered(ECHO, opaque, bytes(600)) for opaque in range(5)))
        assert transport.is_read_paused
        assert [command.opaque for command in setup.sent()] == [0, 1]
        connection.check_ages(29.0)  # what waits for the peer to read is not the peer's delay

        connection.resume_writing()
        await asyncio.sleep(0)
        assert [command.opaque for command in setup.sent()] == [0, 1, 2, 3]
        transport.write = write  # type: ignore[method-assign]
        connection.resume_writing()
        await asyncio.sleep(0)
        assert [command.opaque for command in setup.sent()] == [0, 1, 2, 3, 4]
        assert not transport.is_read_paused

    with_setup(test, output_pause_bytes=1_000, frame_timeout_ms=1)


def test_a_clients_request_waits_until_the_peer_reads() -> None:
    async def test(setup: Setup) -> None:
        setup.connection.pause_writing()
        assert not setup.transport.is_read_paused
        asking = asyncio.ensure_future(setup.connection.request(request(ECHO), 3))
        await asyncio.sleep(1)
        assert setup.transport.writes == []

        setup.connection.resume_writing()
        await asyncio.sleep(0.001)
        setup.receive(response(setup.sent()[0]))
        await asking

    with_setup(test, is_accepted=False)


def test_a_request_that_never_could_be_sent_says_so() -> None:
    async def test(setup: Setup) -> None:
        setup.connection.pause_writing()
        with pytest.raises(RequestTimeoutError, match="the request was not sent"):
            await setup.connection.request(request(ECHO), 3)
        assert setup.transport.writes == []

    with_setup(test, is_accepted=False)
