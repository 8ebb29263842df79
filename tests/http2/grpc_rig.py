"""A gRPC server in virtual time, with clients that exchange frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from kourou.http2 import frames
from kourou.http2.calls import Call, Kind, Method
from kourou.http2.limits import GrpcLimits
from kourou.http2.server import GrpcServer
from kourou.remoting.network import Address
from kourou.testing.loop import run_virtual
from kourou.testing.network import LATENCY_S, MemoryNetwork
from tests.http2.peer import Frame, Peer, of_stream

ADDRESS: Address = ("127.0.0.1", 8081)
PATIENCE_S = 1000.0

Condition = Callable[[list[Frame]], Any]


class Client(asyncio.BufferedProtocol):
    """A connection to the server.

    Attributes:
        received: the frames of the server.
        is_slow: stops reading after each 64 KiB.
    """

    def __init__(self) -> None:
        self.peer = Peer()
        self.received: list[Frame] = []
        self.is_closed = self.is_slow = False
        self.transport: asyncio.Transport
        self._buffer = bytearray(65_536)
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.peer.parse(bytes(self._buffer[:nbytes]))
        if self.is_slow:
            self.transport.pause_reading()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    def send(self, *data: bytes) -> None:
        """Send bytes."""
        self.transport.write(b"".join(data))

    async def until(self, condition: Condition) -> list[Frame]:
        """Wait until the frames fulfil a condition; return them."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self.received):
                self._changed.clear()
                await self._changed.wait()
        return self.received

    async def answer(self, stream_id: int) -> list[Frame]:
        """Wait until a stream is answered or reset; return its frames."""

        def is_over(received: list[Frame]) -> bool:
            return any(
                one.ends or one.kind == frames.RST_STREAM for one in of_stream(received, stream_id)
            )

        return of_stream(await self.until(is_over), stream_id)

    async def closed(self) -> list[Frame]:
        """Wait until the server has closed the connection; return the frames."""
        return await self.until(lambda _: self.is_closed)


class GrpcRig:
    """A started server, and its network."""

    def __init__(
        self, methods: Mapping[str, Method], limits: GrpcLimits | None, network: MemoryNetwork
    ) -> None:
        self.network = network
        self.calls: list[Call] = []
        self.server = GrpcServer(self.network, methods, limits)

    async def connect(self, *settings: tuple[int, int]) -> Client:
        """Return a connection after its first frames."""
        client = cast(Client, await self.network.connect(ADDRESS, Client, 3.0))
        client.send(client.peer.preface(*settings))
        await client.until(lambda received: len(received) >= 3)
        client.received.clear()
        return client


def run(
    test: Callable[[GrpcRig], Coroutine[Any, Any, None]],
    methods: Mapping[str, Method],
    limits: GrpcLimits | None = None,
    latency_s: tuple[float, float] = LATENCY_S,
) -> None:
    """Run a test with a server in virtual time; the server must end without open connections."""

    async def main() -> None:
        rig = GrpcRig(methods, limits, MemoryNetwork(latency_s=latency_s))
        await rig.server.start(ADDRESS)
        await test(rig)
        await rig.server.stop(0.0)
        assert rig.server.connections == []
        assert rig.server.shared.memory.total_bytes == 0
        assert rig.server.shared.partials.total_bytes == 0
        assert rig.server.shared.unread.total == 0
        assert rig.server.shared.calls.open_bytes == 0

    run_virtual(main())


def unary(handle: Callable[[Call, bytes], None]) -> dict[str, Method]:
    """Return the methods of a service with one unary method."""
    return {"/t.Echo/Unary": Method(Kind.UNARY, handle)}


def bidi(handle: Callable[[Call, bytes], None]) -> dict[str, Method]:
    """Return the methods of a service with one bidirectional method, by the same path."""
    return {"/t.Echo/Unary": Method(Kind.BIDI, handle)}


def echo(call: Call, request: bytes) -> None:
    """Reply with the request."""
    call.reply(request)
