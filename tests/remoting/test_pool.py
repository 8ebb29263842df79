"""One shared connection for each address, replaced when lost, with bounded waits."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.errors import (
    ClosedError,
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    RequestTimeoutError,
)
from kourou.protocol.command import RemotingCommand, request, response
from kourou.remoting.connection import Connection, Request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.server import RemotingServer
from kourou.testing.loop import VirtualTimeLoop, run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime

ECHO, HOLD, LEAVE, ASK_BACK, NOTE = 10, 11, 12, 13, 14


class World:
    """A server, and a pool that can connect to it."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(seed=2)
        self.runtime = sim_runtime(2, self.network)
        self.notes: list[bytes] = []
        self.connected: list[tuple[str, Connection]] = []
        self.goodbyes_left = 0
        self.where: Address = ("127.0.0.1", 10911)
        self.address = format_address(self.where)
        self.server = self.make_server()
        self.pool = ConnectionPool(
            self.runtime,
            {ASK_BACK: lambda asked: response(asked.command, body=b"here I am")},
            ConnectionLimits(),
            lambda address, connection: self.connected.append((address, connection)),
        )

    def make_server(self) -> RemotingServer:
        handlers = {
            ECHO: lambda asked: response(asked.command, body=asked.command.body),
            HOLD: lambda asked: None,
            LEAVE: self._on_leave,
            NOTE: self._on_note,
        }
        return RemotingServer(self.runtime, handlers, ConnectionLimits(), "test")

    async def ask(
        self, code: int = ECHO, timeout_s: float = 3, body: bytes = b""
    ) -> RemotingCommand:
        return await self.pool.request(self.address, request(code, body=body), timeout_s)

    def _on_leave(self, asked: Request) -> RemotingCommand:
        if self.goodbyes_left:
            self.goodbyes_left -= 1
            return response(asked.command, 1500, "please go away")
        return response(asked.command, body=b"served")

    def _on_note(self, asked: Request) -> None:
        self.notes.append(asked.command.body)


def in_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await world.server.start(world.where)
        await test(world)
        await world.pool.close()
        await world.server.stop()

    run_virtual(main(), limit_s=3600)


def test_concurrent_callers_share_one_connection() -> None:
    async def test(world: World) -> None:
        answers = await asyncio.gather(*(world.ask(body=b"%d" % n) for n in range(10)))

        assert [answer.body for answer in answers] == [b"%d" % n for n in range(10)]
        assert len(world.server.connections) == 1
        assert [address for address, _ in world.connected] == [world.address]

    in_world(test)


def test_a_lost_connection_is_replaced_by_the_next_request() -> None:
    async def test(world: World) -> None:
        await world.ask()
        world.network.cut(world.where)
        await asyncio.sleep(0)
        with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:10911: refused"):
            await world.ask()

        world.network.heal(world.where)
        await world.ask()
        assert len(world.connected) == 2

    in_world(test)


def test_a_pending_request_fails_when_its_connection_is_lost() -> None:
    async def test(world: World) -> None:
        asking = asyncio.ensure_future(world.ask(HOLD, timeout_s=60))
        await asyncio.sleep(1)
        world.network.cut(world.where)

        with pytest.raises(ConnectionLostError) as caught:
            await asking
        assert caught.value.refresh_route
        assert asyncio.get_running_loop().time() < 2
        world.network.heal(world.where)

    in_world(test)


def test_a_peer_silent_for_a_whole_request_loses_its_connection() -> None:
    async def test(world: World) -> None:
        await world.ask()
        world.network.stall(world.where)
        with pytest.raises(RequestTimeoutError):
            await world.ask()
        assert not world.connected[0][1].is_open

        world.network.heal(world.where)
        await world.ask()
        assert len(world.connected) == 2

    in_world(test)


def test_a_short_timeout_alone_does_not_end_the_connection_of_others() -> None:
    async def test(world: World) -> None:
        await world.ask()
        world.network.stall(world.where)
        patient = asyncio.ensure_future(world.ask(timeout_s=3))
        with pytest.raises(RequestTimeoutError):
            await world.ask(timeout_s=0.1)
        assert world.connected[0][1].is_open

        world.network.heal(world.where)
        await patient
        assert len(world.connected) == 1

    in_world(test)


def test_a_peer_silent_during_several_short_requests_loses_its_connection() -> None:
    async def test(world: World) -> None:
        await world.ask()
        world.network.stall(world.where)
        for _ in range(4):
            assert world.connected[0][1].is_open
            with pytest.raises(RequestTimeoutError):
                await world.ask(timeout_s=0.25)
        assert not world.connected[0][1].is_open
        assert asyncio.get_running_loop().time() < 2
        world.network.heal(world.where)

    in_world(test)


def test_a_peer_that_answers_others_keeps_its_connection() -> None:
    async def test(world: World) -> None:
        slow = asyncio.ensure_future(world.ask(HOLD))
        await asyncio.sleep(1)
        await world.ask()
        with pytest.raises(RequestTimeoutError):
            await slow
        assert world.connected[0][1].is_open

    in_world(test)


def test_the_request_timeout_covers_connecting() -> None:
    async def test(world: World) -> None:
        world.network.stall(world.where)
        with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:10911 within 0\.5 s"):
            await world.ask(timeout_s=0.5)
        assert asyncio.get_running_loop().time() == pytest.approx(0.5)

    in_world(test)


def test_connecting_has_its_own_timeout() -> None:
    async def test(world: World) -> None:
        world.network.stall(world.where)
        with pytest.raises(ConnectFailedError, match="within 3 s"):
            await world.ask(timeout_s=60)

    in_world(test)


def test_a_cancelled_caller_does_not_cancel_the_shared_attempt() -> None:
    async def test(world: World) -> None:
        first = asyncio.ensure_future(world.pool.get(world.address))
        second = asyncio.ensure_future(world.pool.get(world.address))
        await asyncio.sleep(0)
        first.cancel()

        assert (await second).is_open
        with pytest.raises(asyncio.CancelledError):
            await first

    in_world(test)


def test_a_failed_attempt_without_callers_is_not_reported_by_asyncio() -> None:
    async def test(world: World) -> None:
        world.network.cut(world.where)
        only = asyncio.ensure_future(world.pool.get(world.address))
        await asyncio.sleep(0)
        only.cancel()
        await asyncio.sleep(1)
        del only
        gc.collect()  # asyncio reports an exception here if it was never retrieved
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        assert loop.unhandled == []

    in_world(test)


def test_a_caller_cancelled_while_the_pool_closes_is_cancelled() -> None:
    async def test(world: World) -> None:
        asking = asyncio.ensure_future(world.pool.get(world.address))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(world.pool.close())
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await closing

    in_world(test)


def test_a_request_answered_go_away_is_repeated_on_a_new_connection() -> None:
    async def test(world: World) -> None:
        world.goodbyes_left = 1
        assert (await world.ask(LEAVE)).body == b"served"
        assert len(world.connected) == 2

    in_world(test)


def test_a_second_go_away_is_returned() -> None:
    async def test(world: World) -> None:
        world.goodbyes_left = 2
        assert (await world.ask(LEAVE)).code == 1500

    in_world(test)


def test_servers_may_send_requests_to_clients() -> None:
    async def test(world: World) -> None:
        await world.ask()
        (connection,) = world.server.connections
        answer = await connection.request(request(ASK_BACK), 3)
        assert answer.body == b"here I am"
        assert (await connection.request(request(4711), 3)).code == 3

    in_world(test)


def test_a_oneway_request_arrives_without_an_answer() -> None:
    async def test(world: World) -> None:
        await world.pool.oneway(world.address, request(NOTE, body=b"by the way", oneway=True))
        await world.ask()
        assert world.notes == [b"by the way"]

    in_world(test)


def test_an_address_that_does_not_parse_is_refused() -> None:
    async def test(world: World) -> None:
        with pytest.raises(ConfigError, match="names no port"):
            await world.pool.request("localhost", request(ECHO), 3)

    in_world(test)


def test_closing_a_pool_fails_pending_requests_and_refuses_new_ones() -> None:
    async def test(world: World) -> None:
        await world.ask()
        held = asyncio.ensure_future(world.ask(HOLD, timeout_s=60))
        await asyncio.sleep(1)
        world.network.stall(("127.0.0.1", 1))
        connecting = asyncio.ensure_future(world.pool.get("127.0.0.1:1"))
        await asyncio.sleep(0)
        await world.pool.close()

        for under_way, error in ((held, ConnectionLostError), (connecting, ClosedError)):
            with pytest.raises(error):
                await under_way
        with pytest.raises(ClosedError):
            await world.ask()

    in_world(test)


def test_an_aborted_pool_disconnects_immediately() -> None:
    async def test(world: World) -> None:
        await world.ask()
        world.pool.abort()
        assert not world.connected[0][1].is_open
        await asyncio.sleep(0.1)
        assert len(world.server.connections) == 0

    in_world(test)


def test_an_idle_connection_is_closed_and_reopened() -> None:
    async def test(world: World) -> None:
        await world.ask()
        await asyncio.sleep(122)
        assert not world.connected[0][1].is_open

        await world.ask()
        assert len(world.connected) == 2

    in_world(test)
