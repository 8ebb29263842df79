"""Contract of the networks: TCP on asyncio and uvloop, within the process, and MemoryNetwork."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import pytest

from kourou.errors import AddressInUseError, ConnectFailedError
from kourou.remoting.admission import Admission
from kourou.remoting.loopback import LoopbackNetwork
from kourou.remoting.network import Address, Listener, Network, ProtocolFactory, TcpNetwork
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.raw_client import RawClient

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
Worlds = tuple[Callable[[], Network], Run[Any]]


class Listening(LoopbackNetwork):
    """A loopback network that knows the servers that listen through it."""

    def __init__(self) -> None:
        self._listening: dict[Address, ProtocolFactory] = {}
        super().__init__(TcpNetwork(), self._listening, ("127.0.0.1", 1))

    async def listen(
        self, address: Address, factory: ProtocolFactory, *, admission: Admission | None = None
    ) -> Listener:
        listener = await super().listen(address, factory, admission=admission)
        self._listening[listener.address] = factory
        return LoopbackListener(listener, self._listening)


class LoopbackListener:
    def __init__(self, listener: Listener, listening: dict[Address, ProtocolFactory]) -> None:
        self._listener = listener
        self._listening = listening
        self.address = listener.address

    def close(self) -> None:
        self._listening.pop(self.address, None)
        self._listener.close()


WORLDS: dict[str, Worlds] = {
    "memory": (lambda: MemoryNetwork(seed=5), run_virtual),
    "process": (Listening, asyncio.run),
    "tcp": (TcpNetwork, asyncio.run),
}
try:
    import uvloop
except ImportError:  # the extra `fast`
    pass
else:
    WORLDS["tcp-uvloop"] = (TcpNetwork, uvloop.run)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Worlds:
    return WORLDS[request.param]


class Pair:
    """A listener and one connection to it, seen from both ends."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.accepted: asyncio.Queue[RawClient] = asyncio.Queue()
        self.listener: Listener
        self.client: RawClient
        self.server: RawClient

    async def __aenter__(self) -> Self:
        self.listener = await self.network.listen(("127.0.0.1", 0), self._accept)
        self.client = await RawClient.connect(self.network, self.listener.address)
        self.client.write(b"!")
        self.server = await self.accepted.get()
        await self.server.until(lambda: self.server.received == b"!")
        self.server.received.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        for end in (self.client, self.server):
            assert end.transport is not None
            end.transport.abort()
            await end.closed()

    def _accept(self) -> RawClient:
        accepted = RawClient()
        self.accepted.put_nowait(accepted)
        return accepted


def in_pair(world: Worlds, test: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    """Run `test` in this world, with both ends of a connection."""
    make_network, run = world

    async def main() -> None:
        async with Pair(make_network()) as pair:
            await test(pair)

    run(main())


def test_bytes_arrive_whole_and_in_order_in_both_directions(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        chance = random.Random(1)
        sent = dict.fromkeys((pair.client, pair.server), b"")
        for _ in range(50):
            for end in sent:
                piece = chance.randbytes(chance.choice((1, 10, 70_000)))
                sent[end] += piece
                end.write(piece)

        await pair.server.until(lambda: len(pair.server.received) >= len(sent[pair.client]))
        await pair.client.until(lambda: len(pair.client.received) >= len(sent[pair.server]))
        assert pair.server.received == sent[pair.client]
        assert pair.client.received == sent[pair.server]

    in_pair(world, test)


def test_each_end_knows_both_addresses(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        ends = (pair.client.transport, pair.server.transport)
        client, server = ends
        assert client is not None
        assert server is not None
        assert client.get_extra_info("peername") == pair.listener.address
        assert server.get_extra_info("sockname") == pair.listener.address
        assert server.get_extra_info("peername") == client.get_extra_info("sockname")

    in_pair(world, test)


@pytest.mark.parametrize("name", sorted(WORLDS.keys() - {"memory"}))
def test_half_closed_connection_receives_what_its_peer_had_written(name: str) -> None:
    async def test(pair: Pair) -> None:
        client = pair.client.transport
        assert client is not None
        assert client.can_write_eof()
        sent = bytes(30_000)
        pair.client.write(b"last")
        pair.server.write(sent)
        client.write_eof()

        await pair.server.closed()
        await pair.client.closed()
        assert pair.server.received == b"last"
        assert pair.client.received == sent

    in_pair(WORLDS[name], test)


def test_bytes_written_before_a_close_still_arrive(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        sent = bytes(1_000_000)
        pair.client.write(sent)
        pair.client.close()
        pair.client.write(b"too late")

        await pair.server.closed()
        await pair.client.closed()
        assert pair.server.received == sent

    in_pair(world, test)


def test_an_abort_ends_both_ends(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        assert pair.server.transport is not None
        pair.server.transport.abort()
        assert pair.server.transport.is_closing()

        await pair.client.closed()
        await pair.server.closed()

    in_pair(world, test)


def test_a_writer_pauses_until_the_reader_reads(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        pair.client.pause()
        sent = 0
        while not pair.server.writes_paused:
            pair.server.write(bytes(1_000_000))
            sent += 1_000_000
            await asyncio.sleep(0)
        assert pair.server.transport is not None
        assert pair.server.transport.get_write_buffer_size() > 0

        pair.client.resume()
        await pair.client.until(lambda: len(pair.client.received) == sent)
        assert pair.server.transport.get_write_buffer_size() == 0

    in_pair(world, test)


def test_a_closed_listener_refuses_but_keeps_what_it_accepted(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        pair.listener.close()
        pair.listener.close()

        with pytest.raises(ConnectFailedError):
            await RawClient.connect(pair.network, pair.listener.address)
        pair.client.write(b"still here")
        await pair.server.until(lambda: pair.server.received == b"still here")

    in_pair(world, test)


def test_a_refused_connection_names_the_address(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        host, port = pair.listener.address
        pair.listener.close()

        with pytest.raises(ConnectFailedError, match=f"{host}:{port}") as caught:
            await RawClient.connect(pair.network, (host, port))
        assert caught.value.retriable

    in_pair(world, test)


def test_a_port_in_use_is_an_error_that_names_it(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        host, port = pair.listener.address

        with pytest.raises(AddressInUseError, match=f"{host}:{port}: the port is in use") as caught:
            await pair.network.listen((host, port), RawClient)
        assert caught.value.address == f"{host}:{port}"

    in_pair(world, test)


def test_a_port_is_free_again_once_its_listener_is_closed(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        address = pair.listener.address
        pair.listener.close()
        await asyncio.sleep(0)

        again = await pair.network.listen(address, RawClient)
        assert again.address == address
        again.close()

    in_pair(world, test)


def test_a_cancelled_connect_leaves_no_connection(world: Worlds) -> None:
    async def test(pair: Pair) -> None:
        attempt = asyncio.ensure_future(RawClient.connect(pair.network, pair.listener.address))
        await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)

        # What is accepted from now on, up to a second connection, is what became of the first.
        second = await RawClient.connect(pair.network, pair.listener.address)
        second.write(b"?")
        second.close()
        received: list[bytes] = []
        while b"?" not in received:
            accepted = await pair.accepted.get()
            await accepted.closed()
            received.append(bytes(accepted.received))
        await second.closed()
        assert received in ([b"?"], [b"", b"?"]), "the first is closed if it was accepted"

    in_pair(world, test)
