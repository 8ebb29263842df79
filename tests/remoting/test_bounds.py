"""Hostile, broken and slow peers cost bounded memory and time, and do not affect other peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.errors import ConnectFailedError
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.frame import FRAME_SIZE_MAX, encode_frame
from kourou.remoting.connection import Request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, Network
from kourou.remoting.output import COUNTED_BYTES
from kourou.remoting.server import RemotingServer
from kourou.testing.loop import run_virtual
from kourou.testing.memory_transport import WINDOW_BYTES
from kourou.testing.raw_client import RawClient
from kourou.testing.runtime import sim_runtime

ECHO, HOLD, BLOW_UP = 10, 310, 12
MIB = 1024 * 1024


class Served:
    """A server in memory and one good client, which other peers must not affect."""

    def __init__(self, network: Network, server: RemotingServer, address: Address) -> None:
        self.network = network
        self.server = server
        self.address = address
        self.good: RawClient
        self._asked = 0

    async def connect(self) -> RawClient:
        return await RawClient.connect(self.network, self.address)

    async def check_good_client(self) -> None:
        """Fail unless the good client is answered."""
        self._asked += 1
        self.good.write(framed(ECHO, body=b"good"))
        answers = await self.good.take(self._asked)
        assert answers[-1].body == b"good"


def framed(code: int, *, body: bytes = b"", oneway: bool = False) -> bytes:
    return encode_frame(request(code, body=body, oneway=oneway))


def serve(test: Callable[[Served], Coroutine[Any, Any, None]], **limits: int) -> None:
    """Run `test` in virtual time against a server with these limits."""

    def echo(asked: Request) -> RemotingCommand:
        return response(asked.command, body=asked.command.body)

    def blow_up(asked: Request) -> RemotingCommand:
        return response(asked.command, body=bytes(4 * MIB))

    async def main() -> None:
        runtime = sim_runtime()
        handlers = {ECHO: echo, HOLD: lambda _: None, BLOW_UP: blow_up}
        server = RemotingServer(runtime, handlers, ConnectionLimits(**limits), "test")
        address = await server.start(("127.0.0.1", 0))
        served = Served(runtime.network, server, address)
        served.good = await served.connect()
        await served.check_good_client()
        await test(served)
        await server.stop()

    run_virtual(main(), limit_s=3600)


def test_garbage_closes_only_its_connection_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: Served) -> None:
        bad = await served.connect()
        bad.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await bad.closed(1)
        await served.check_good_client()

    serve(test)
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "connection.dropped peer=127.0.0.1:" in warning.getMessage()
    assert "frame of 1195725856 bytes exceeds the limit" in warning.getMessage()


def test_a_header_that_is_not_json_closes_its_connection() -> None:
    async def test(served: Served) -> None:
        bad = await served.connect()
        header = b"{not json"
        bad.write((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        await bad.closed(1)
        await served.check_good_client()

    serve(test)


def test_requests_before_garbage_are_still_answered() -> None:
    async def test(served: Served) -> None:
        bad = await served.connect()
        bad.write(framed(ECHO, body=b"fine") + b"\xff" * 8)
        await bad.closed(1)
        assert [answer.body for answer in bad.frames()] == [b"fine"]

    serve(test)


def test_warnings_about_many_bad_peers_are_rate_limited_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: Served) -> None:
        for _ in range(100):
            bad = await served.connect()
            bad.write(b"\xff" * 8)
            await bad.closed(1)
        await asyncio.sleep(60)
        last = await served.connect()
        last.write(b"\xff" * 8)
        await last.closed(1)

    serve(test)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) < 30
    assert sum(int(text.rpartition("suppressed=")[2]) + 1 for text in warnings) == 101


def test_an_oversized_frame_is_refused_by_its_length_field() -> None:
    async def test(served: Served) -> None:
        bad = await served.connect()
        bad.write((FRAME_SIZE_MAX + 1).to_bytes(4, "big"))
        await bad.closed(1)
        assert served.server.connections.partial_bytes == 0

    serve(test)


def test_a_configured_lower_frame_limit_applies() -> None:
    async def test(served: Served) -> None:
        fitting, bad = await served.connect(), await served.connect()
        fitting.write(framed(ECHO, body=bytes(700)))
        [answer] = await fitting.take(1)
        assert answer.body == bytes(700)
        bad.write(framed(ECHO, body=bytes(1_000)))
        await bad.closed(1)
        assert (bad.frames(), fitting.is_closed) == ([], False)

    serve(test, frame_bytes_max=1_000)


def test_a_slow_frame_is_closed_after_frame_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: Served) -> None:
        slow = await served.connect()
        frame = framed(ECHO, body=bytes(100))
        slow.write(frame[:50])
        await asyncio.sleep(29)
        assert not slow.is_closed
        slow.write(frame[50:60])  # more bytes of a frame do not extend its timeout

        await slow.closed(3)
        await served.check_good_client()

    serve(test, frame_timeout_ms=30_000)
    assert "frame incomplete after 30000 ms, 60 bytes received" in caplog.text


def test_slow_frames_within_frame_timeout_keep_the_connection_open() -> None:
    async def test(served: Served) -> None:
        steady = await served.connect()
        frame = framed(ECHO)
        steady.write(frame[:10])
        for count in range(1, 10):
            await asyncio.sleep(20)
            steady.write(frame[10:] + frame[:10])
            await steady.take(count)
        assert not steady.is_closed

    serve(test, frame_timeout_ms=30_000)


def test_a_silent_connection_is_closed_after_idle_timeout() -> None:
    async def test(served: Served) -> None:
        silent = await served.connect()
        await asyncio.sleep(119)
        assert not silent.is_closed
        await silent.closed(4)

    serve(test, idle_timeout_ms=120_000)


def test_an_occasionally_active_connection_stays_open() -> None:
    async def test(served: Served) -> None:
        for _ in range(10):
            await asyncio.sleep(100)
            await served.check_good_client()

    serve(test, idle_timeout_ms=120_000)


def test_a_connection_that_only_receives_stays_open() -> None:
    async def test(served: Served) -> None:
        (connection,) = served.server.connections
        for _ in range(5):
            await asyncio.sleep(100)
            connection.send(request(ECHO, oneway=True))
        assert connection.is_open

    serve(test, idle_timeout_ms=120_000)


def test_server_stops_reading_from_a_peer_that_leaves_answers_unread() -> None:
    async def test(served: Served) -> None:
        slow = await served.connect()
        slow.pause()
        slow.write(framed(BLOW_UP) * 12)
        await served.check_good_client()
        await asyncio.sleep(1)
        assert not slow.is_closed

        slow.resume()
        await slow.until(lambda: len(slow.received) > 12 * 4 * MIB)

    serve(test, output_bytes_max=20 * MIB, output_pause_bytes=4 * MIB)


def test_a_peer_with_unread_output_above_the_limit_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: Served) -> None:
        slow = await served.connect()
        slow.pause()
        (connection,) = list(served.server.connections)[1:]
        for _ in range(25):
            connection.send(request(ECHO, body=bytes(MIB)))
            await asyncio.sleep(0)
        assert not connection.is_open
        await served.check_good_client()

        slow.resume()
        await slow.closed(3)

    serve(test, output_bytes_max=20 * MIB, output_pause_bytes=4 * MIB)
    assert "bytes of output unread, limit 20971520" in caplog.text


def test_total_unread_output_is_bounded_by_closing_the_largest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: Served) -> None:
        modest = await served.connect()
        modest.pause()
        modest.write(framed(BLOW_UP))
        greedy = [await served.connect() for _ in range(8)]
        for client in greedy:
            client.pause()
            client.write(framed(BLOW_UP) * 12)
            await served.check_good_client()
            await asyncio.sleep(0.1)
            assert served.server.connections.unread_bytes <= 40 * MIB
        modest.resume()
        await modest.take(1)
        assert not modest.is_closed
        for client in greedy:
            client.resume()
        await asyncio.sleep(3)
        assert 3 <= sum(client.is_closed for client in greedy) < len(greedy)
        assert served.server.connections.unread_bytes == 0, "read bytes no longer count"

    serve(test, output_bytes_total_max=40 * MIB, output_pause_bytes=8 * MIB)
    assert (
        "bytes of output are unread by all peers, the limit is 41943040: this peer has"
        in caplog.text
    )


def test_small_unread_outputs_are_counted_by_the_sweep() -> None:
    async def test(served: Served) -> None:
        slow = [await served.connect() for _ in range(5)]
        for client in slow:
            client.pause()
        for connection in list(served.server.connections)[1:]:
            connection.send(request(ECHO, body=bytes(WINDOW_BYTES)))
            await asyncio.sleep(0)
            connection.send(request(ECHO, body=bytes(COUNTED_BYTES // 2)))
        await asyncio.sleep(2)
        assert served.server.connections.unread_bytes > 5 * COUNTED_BYTES // 2

    serve(test)


def test_total_bytes_of_partial_frames_are_bounded() -> None:
    async def test(served: Served) -> None:
        half = framed(ECHO, body=bytes(8 * MIB))[: 5 * MIB]
        greedy = [await served.connect() for _ in range(10)]
        for client in greedy:
            client.write(half)
            await asyncio.sleep(0.1)
            assert served.server.connections.partial_bytes <= 20 * MIB
            await served.check_good_client()
        closed = [client.is_closed for client in greedy]
        assert closed == sorted(closed, reverse=True), "the oldest are dropped first"
        assert closed.count(False) >= 2
        for client in greedy[-2:]:
            client.close()
            await client.closed()
        await asyncio.sleep(0.1)

    serve(test, partial_bytes_total_max=20 * MIB)


def test_a_connection_above_the_limit_is_closed_immediately(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(served: Served) -> None:
        second, third = await served.connect(), await served.connect()
        await third.closed(1)
        assert not second.is_closed
        await served.check_good_client()

        second.close()
        await second.closed()
        await asyncio.sleep(0.1)
        fourth = await served.connect()
        fourth.write(framed(ECHO))
        await fourth.take(1)

    serve(test, connections_max=2)
    assert "2 connections are open already" in caplog.text


def test_requests_above_the_unanswered_limit_get_system_busy() -> None:
    async def test(served: Served) -> None:
        eager = await served.connect()
        eager.write(framed(HOLD) * 3 + framed(ECHO) + framed(ECHO, oneway=True))
        (answer,) = await eager.take(1)
        assert answer.code == 2
        assert answer.remark == "[OVERLOAD]system busy, start flow control for a while"

    serve(test, unanswered_requests_max=3)


@pytest.mark.parametrize("limit", ["unanswered_bytes_max", "unanswered_bytes_total_max"])
def test_unanswered_request_bytes_are_bounded_until_the_connection_closes(
    limit: str,
) -> None:
    async def test(served: Served) -> None:
        greedy = await served.connect()
        greedy.write(framed(HOLD, body=bytes(MIB)) * 2 + framed(HOLD, oneway=True))
        greedy.write(framed(ECHO, body=bytes(MIB)) + framed(ECHO, body=b"small"))
        refused, answered = await greedy.take(2)
        assert (refused.code, answered.body) == (2, b"small")
        assert 2 * MIB < served.server.connections.unanswered_bytes < 3 * MIB
        await served.check_good_client()

        greedy.close()
        await greedy.closed()
        await asyncio.sleep(0.1)
        assert served.server.connections.unanswered_bytes == 0

    serve(test, **{"frame_bytes_max": 2 * MIB, limit: 3 * MIB})


def test_answered_requests_do_not_count_towards_the_limit() -> None:
    async def test(served: Served) -> None:
        eager = await served.connect()
        eager.write(framed(ECHO) * 20)
        assert {answer.code for answer in await eager.take(20)} == {0}

    serve(test, unanswered_requests_max=3)


def test_a_disconnect_within_a_frame_releases_its_bytes() -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.write(framed(ECHO, body=bytes(500_000))[:200_000])
        client.close()
        await client.closed()
        await asyncio.sleep(0.1)
        assert served.server.connections.partial_bytes == 0
        assert len(served.server.connections) == 1

    serve(test)


def test_a_stopping_server_accepts_no_connections() -> None:
    async def test(served: Served) -> None:
        await served.server.stop()
        await served.good.closed(1)
        with pytest.raises(ConnectFailedError):
            await served.connect()

    serve(test)


def test_a_header_above_its_limit_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def with_header_of(size: int) -> bytes:
        header = b'{"code":%d}' % ECHO
        sizes = (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big")
        return sizes + header.ljust(size)

    async def test(served: Served) -> None:
        client = await served.connect()
        client.write(with_header_of(10_000))
        await client.take(1)
        client.write(with_header_of(10_001))
        await client.closed(1)
        await served.check_good_client()

    serve(test, header_bytes_max=10_000)
    assert "header of 10001 bytes exceeds the limit of 10000 bytes" in caplog.text
