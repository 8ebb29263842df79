"""The server: connections that are idle, stalled, slow, dead or too many; its stop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kourou.errors import ConfigError
from kourou.http2 import frames
from kourou.http2.calls import Call
from kourou.http2.frames import ErrorCode, Setting
from kourou.http2.limits import GrpcLimits, Http2Limits
from tests.http2.grpc_rig import ADDRESS, GrpcRig, bidi, echo, run, unary
from tests.http2.peer import body, frame, goaway, of_kind, of_stream, trailers

LARGE = 2**31 - 1


def hold(call: Call, _: bytes) -> None:
    """Never answer."""


def test_idle_connection_is_closed_after_two_minutes() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        await asyncio.sleep(60)
        client.send(client.peer.call(1))
        await client.answer(1)
        began_s = asyncio.get_running_loop().time()
        await client.closed()

        assert 119 <= asyncio.get_running_loop().time() - began_s <= 123
        assert goaway([client.received[-1]]) == (ErrorCode.NO_ERROR, "")

    run(test, unary(echo))


def test_pings_do_not_keep_an_idle_connection_and_are_no_offence() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        for _ in range(11):
            client.send(frame(frames.PING, 0, 0, bytes(8)))
            await asyncio.sleep(10)
        assert len(of_kind(client.received, frames.PING)) == 11
        assert not of_kind(client.received, frames.GOAWAY)
        await client.closed()

    run(test, unary(echo))


def test_connection_with_an_open_call_is_never_idle() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1))
        for _ in range(100):
            await asyncio.sleep(10)
            client.send(frame(frames.PING, 0, 0, bytes(8)))
        assert not of_kind(client.received, frames.GOAWAY)
        assert not client.is_closed

    run(test, unary(hold))


def test_silent_client_with_an_open_call_is_pinged_and_dropped_without_an_answer() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1))
        (ping,) = await client.until(bool)
        assert (ping.kind, ping.flags) == (frames.PING, 0)
        client.send(frame(frames.PING, frames.ACK, 0, ping.payload))
        await client.until(lambda received: len(received) == 2)
        assert not client.is_closed
        began_s = asyncio.get_running_loop().time()
        await client.closed()
        assert 19 <= asyncio.get_running_loop().time() - began_s <= 22

    run(test, unary(hold))


def test_connection_above_the_limit_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: GrpcRig) -> None:
        first = await rig.connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await rig.connect()
        first.send(first.peer.call(1))
        await first.answer(1)

    run(test, unary(echo), GrpcLimits(connections_max=1))
    assert "1 connections are open already" in caplog.text


def test_incomplete_frame_is_dropped_after_half_a_minute() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.headers(1), b"\0\0\x09")
        began_s = asyncio.get_running_loop().time()
        for _ in range(5):
            await asyncio.sleep(5)
            client.send(bytes(1))
        await client.closed()
        assert 29 <= asyncio.get_running_loop().time() - began_s <= 33

    run(test, unary(hold))


def test_busy_client_whose_reads_end_within_frames_is_served() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        rest = b""
        for number in range(1, 81, 2):
            call = rest + client.peer.call(number)
            client.send(call[:-1])
            rest = call[-1:]
            await asyncio.sleep(1)
        client.send(rest)
        await client.answer(79)

    run(test, unary(echo))


def test_oldest_incomplete_frame_is_dropped_above_the_memory_for_all() -> None:
    async def test(rig: GrpcRig) -> None:
        old, young = await rig.connect(), await rig.connect()
        old.send(frame(frames.DATA, 0, 1, bytes(16_384))[:-1])
        await asyncio.sleep(1)
        young.send(frame(frames.DATA, 0, 1, bytes(16_384))[:-1])
        await old.closed()
        assert not young.is_closed

    run(test, unary(hold), GrpcLimits(partial_bytes_max=20_000))


def produce(call: Call, request: bytes) -> None:
    """Send without regard to the client."""
    for _ in range(300):
        call.send(bytes(10_000))
        assert call.unsent_bytes < 2_100_000, "nothing more waits after the connection is dropped"
    call.finish()


def test_client_that_reads_nothing_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect((Setting.INITIAL_WINDOW_SIZE, LARGE))
        client.send(frame(frames.WINDOW_UPDATE, 0, 0, (LARGE - 65_535).to_bytes(4)))
        client.transport.pause_reading()
        client.send(client.peer.call(1))
        await asyncio.sleep(40)
        assert rig.server.connections == []

    run(test, unary(produce))
    assert "read nothing for 30 s" in caplog.text


def test_client_that_reads_slowly_is_served() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect((Setting.INITIAL_WINDOW_SIZE, LARGE))
        client.send(frame(frames.WINDOW_UPDATE, 0, 0, (LARGE - 65_535).to_bytes(4)))
        client.is_slow = True
        client.send(client.peer.call(1))
        while len(body(client.received, 1)) < 300 * 10_005:
            await asyncio.sleep(10)
            client.transport.resume_reading()
        assert trailers(client.received, 1) == {"grpc-status": "0"}

    run(test, unary(produce))


@pytest.mark.parametrize("scope", ["output_bytes_max", "output_bytes_total_max"])
def test_unread_output_above_the_limit_closes_the_connection(
    scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: GrpcRig) -> None:
        reader, hoarder = await rig.connect(), await rig.connect()
        hoarder.send(hoarder.peer.call(1))  # its windows stay at 65,535
        await hoarder.closed()
        reader.send(reader.peer.headers(1))
        await asyncio.sleep(1)
        assert not reader.is_closed

    run(test, unary(produce), GrpcLimits(**{scope: 2_000_000}))  # type: ignore[arg-type]
    assert "2000000" in caplog.text


def test_violation_is_named_to_the_client_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(frame(frames.PING, 0, 0, bytes(8)) * 200)
        await client.closed()
        expected = "too many frames, the last of them pings"
        assert goaway([client.received[-1]]) == (ErrorCode.ENHANCE_YOUR_CALM, expected)

    limits = GrpcLimits(http2=Http2Limits(cheap_frames_burst=100, cheap_frames_per_s=1))
    run(test, unary(echo), limits)
    assert "too many frames, the last of them pings" in caplog.text


def test_warnings_that_clients_cause_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: GrpcRig) -> None:
        for _ in range(100):
            client = await rig.connect()
            client.send(frame(frames.PING, 0, 1, bytes(8)))
            await client.closed()

    run(test, unary(echo))
    assert 20 <= caplog.text.count("connection.dropped") < 40


# Stopping


def test_stop_waits_for_open_calls_and_refuses_new_ones() -> None:
    calls: list[Call] = []

    async def test(rig: GrpcRig) -> None:
        busy, idle = await rig.connect(), await rig.connect()
        busy.send(busy.peer.call(1))
        await asyncio.sleep(1)
        stop = asyncio.create_task(rig.server.stop(30.0))
        await idle.closed()
        (last,) = await busy.until(bool)
        assert (last.kind, last.payload[:4]) == (frames.GOAWAY, b"\0\0\0\x01")

        busy.send(busy.peer.call(3))
        await asyncio.sleep(5)
        assert not stop.done()
        calls[0].reply(b"done")
        await stop
        await busy.closed()
        assert trailers(busy.received, 1) == {"grpc-status": "0"}
        assert of_stream(busy.received, 3) == []
        assert len(calls) == 1

    run(test, unary(lambda call, _: calls.append(call)))


@pytest.mark.parametrize("reads", [20, 3])
def test_stop_lets_a_client_read_its_answer_while_it_reads(reads: int) -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect((Setting.INITIAL_WINDOW_SIZE, LARGE))
        client.send(frame(frames.WINDOW_UPDATE, 0, 0, (LARGE - 65_535).to_bytes(4)))
        client.is_slow = True
        client.send(client.peer.call(1))
        await asyncio.sleep(1)
        assert rig.server.calls == 0, "the answer has left the stream"
        began_s = asyncio.get_running_loop().time()
        stop = asyncio.create_task(rig.server.stop(30.0))
        for _ in range(reads):
            await asyncio.sleep(0.5)
            client.transport.resume_reading()
        await stop

        is_complete = len(body(client.received, 1)) == 900_005
        assert is_complete == (reads == 20)
        assert asyncio.get_running_loop().time() - began_s < 11

    run(test, unary(lambda call, _: call.reply(bytes(900_000))))


def test_stop_ends_calls_after_its_grace() -> None:
    log: list[str] = []

    def handle(call: Call, _: bytes) -> None:
        call.on_cancel = lambda: log.append("cancelled")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.headers(1))
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await rig.server.stop(7.0)
        assert 7 <= asyncio.get_running_loop().time() - began_s < 8
        assert log == ["cancelled"]
        await client.closed()

    run(test, bidi(handle))


def test_callbacks_of_a_closed_connection_run_once_in_order() -> None:
    log: list[object] = []

    def handle(call: Call, request: bytes) -> None:
        connection = call.connection
        if not connection.on_closed:
            connection.state = "mine"
            connection.on_closed.append(lambda one: log.append((one.state, one.is_open)))
            connection.on_closed.append(lambda _: 1 / 0)  # type: ignore[arg-type]
            connection.on_closed.append(lambda _: log.append("last"))
        call.reply(request)

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1), client.peer.call(3))
        await client.answer(3)
        rig.network.cut(ADDRESS)
        await asyncio.sleep(1)
        assert log == [("mine", False), "last"]

    run(test, unary(handle))


def test_aborted_server_loses_its_connections_at_once() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1, grpc_timeout="5S"))
        await asyncio.sleep(1)
        rig.server.abort()
        await client.closed()
        assert not of_kind(client.received, frames.GOAWAY)

    run(test, unary(hold))


@pytest.mark.parametrize(
    ("field", "value"),
    [("streams_max", 0), ("stream_window_bytes", 65_534), ("connection_window_bytes", 2**31)],
)
def test_limits_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field):
        Http2Limits(**{field: value})


def test_messages_must_fit_into_their_memory() -> None:
    with pytest.raises(ConfigError, match="three quarters"):
        GrpcLimits(message_bytes_max=751, incomplete_bytes_max=1000)
    with pytest.raises(ConfigError, match="idle_timeout_s is 0"):
        GrpcLimits(idle_timeout_s=0)


def test_log_names_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: GrpcRig) -> None:
        pass

    with caplog.at_level(logging.INFO):
        run(test, unary(echo))
    events = [record.getMessage() for record in caplog.records]
    assert events == ["server.started name=grpc address=127.0.0.1:8081", "server.stopped name=grpc"]
