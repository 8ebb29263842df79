"""A server starts once, logs its address, and stops within its timeout with stalled peers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import ref

import pytest

from kourou.errors import AddressInUseError, ConnectFailedError, ConnectionLostError
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.frame import encode_frame
from kourou.remoting.connection import Connection, Request
from kourou.remoting.connections import Connections
from kourou.remoting.dispatch import Dispatcher
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.testing.lone_connection import RecordingTransport
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient
from kourou.testing.runtime import sim_runtime

ECHO, LARGE, HOLD = 10, 11, 12
PING = encode_frame(request(ECHO, body=b"ping"))
MIB = 1024 * 1024

Test = Callable[["Served"], Coroutine[Any, Any, None]]
Run = Callable[..., None]


class Served:
    """A started server and the closed connections that it reported."""

    def __init__(self, runtime: Runtime, **limits: int) -> None:
        self.runtime = runtime
        self.closed: list[Connection] = []
        handlers = {ECHO: self._on_echo, LARGE: self._on_large, HOLD: lambda _: None}
        self.server = RemotingServer(
            runtime, handlers, ConnectionLimits(**limits), "test", self.closed.append
        )
        self.address: Address
        self.is_large_asked = asyncio.Event()

    async def connect(self) -> RawClient:
        return await RawClient.connect(self.runtime.network, self.address)

    def _on_echo(self, asked: Request) -> RemotingCommand:
        return response(asked.command, body=asked.command.body)

    def _on_large(self, asked: Request) -> RemotingCommand:
        self.is_large_asked.set()
        return response(asked.command, body=bytes(8 * MIB))


async def serve(test: Test, runtime: Runtime, **limits: int) -> None:
    served = Served(runtime, **limits)
    served.address = await served.server.start(("127.0.0.1", 0))
    await test(served)
    await served.server.stop()


WORLDS: dict[str, Run] = {
    "memory": lambda test, **limits: run_virtual(serve(test, sim_runtime(), **limits)),
    "tcp": lambda test, **limits: asyncio.run(serve(test, Runtime.system(), **limits)),
}
try:
    import uvloop
except ImportError:  # the extra `fast`
    pass
else:
    WORLDS["tcp-uvloop"] = lambda test, **limits: uvloop.run(
        serve(test, Runtime.system(), **limits)
    )


@pytest.fixture(params=WORLDS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test against a server in memory and one on a real port."""
    return WORLDS[request.param]


def test_many_clients_are_served_at_once(run: Run) -> None:
    async def test(served: Served) -> None:
        clients = [await served.connect() for _ in range(20)]
        for client in clients:
            client.write(PING * 3)
        for client in clients:
            assert [answer.body for answer in await client.take(3)] == [b"ping"] * 3
        assert len(served.server.connections) == 20

    run(test)


def test_a_closed_connection_is_reported_once(run: Run) -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.write(PING)
        await client.take(1)
        (connection,) = served.server.connections
        assert connection.local_address == served.address
        client.close()
        await client.closed()
        await served.server.stop()

        assert served.closed == [connection]
        assert len(served.server.connections) == 0

    run(test)


@pytest.mark.parametrize("run", sorted(WORLDS.keys() - {"memory"}), indirect=True)
@pytest.mark.parametrize(
    "more",
    [b"", PING[:9], MIB.to_bytes(4, "big") + bytes(MIB // 4), encode_frame(request(HOLD)), b"GET"],
    ids=["nothing", "a bit of a frame", "half of a large frame", "held", "no frame"],
)
def test_a_closed_connection_is_freed_without_garbage_collection(run: Run, more: bytes) -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.write(PING)
        await client.take(1)
        (connection,) = served.server.connections
        asked = asyncio.create_task(connection.request(request(ECHO), 60))
        await client.take(2)
        client.write(more)
        client.close()
        await asyncio.wait([asked])
        assert isinstance(asked.exception(), ConnectionLostError)
        await served.server.stop()

        gone = ref(connection)
        del connection, asked
        served.closed.clear()
        assert gone() is None

    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


def test_stop_sends_queued_answers_and_then_disconnects(run: Run) -> None:
    async def test(served: Served) -> None:
        client = await served.connect()
        client.write(encode_frame(request(LARGE)))
        await client.until(lambda: len(client.received) > 0)
        await served.server.stop()

        await client.closed()
        (answer,) = client.frames()
        assert len(answer.body) == 8 * MIB

    run(test, drain_timeout_ms=60_000)


async def stop_while_one_reads_nothing(served: Served) -> RawClient:
    """Stop the server while a client does not read its answer; return the client."""
    client = await served.connect()
    client.pause()
    client.write(encode_frame(request(LARGE)))
    await served.is_large_asked.wait()
    await served.server.stop()
    return client


def test_stop_does_not_wait_for_a_peer_that_reads_nothing(run: Run) -> None:
    async def test(served: Served) -> None:
        client = await stop_while_one_reads_nothing(served)
        assert len(served.server.connections) == 0
        client.resume()
        await client.closed()

    run(test, drain_timeout_ms=100)


def test_stop_takes_at_most_drain_timeout() -> None:
    async def test(served: Served) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        client = await stop_while_one_reads_nothing(served)
        client.resume()
        await client.closed()
        assert loop.time() - started_s < 1

    run_virtual(serve(test, sim_runtime(), drain_timeout_ms=100))


def test_stopping_twice_and_before_the_start_is_harmless() -> None:
    async def main() -> None:
        served = Served(sim_runtime())
        await served.server.stop()
        served.address = await served.server.start(("127.0.0.1", 0))
        await served.server.stop()
        await served.server.stop()
        with pytest.raises(ConnectFailedError):
            await served.connect()

    run_virtual(main())


def test_abort_closes_immediately_and_frees_the_port() -> None:
    async def main() -> None:
        served = Served(sim_runtime())
        served.address = await served.server.start(("127.0.0.1", 0))
        client = await served.connect()
        served.server.abort()
        await client.closed(1)
        assert len(served.closed) == 1

        again = Served(served.runtime)
        assert await again.server.start(served.address) == served.address
        await again.server.stop()

    run_virtual(main())


def test_a_taken_port_is_refused_and_its_owner_serves_on(run: Run) -> None:
    async def test(served: Served) -> None:
        with pytest.raises(AddressInUseError, match="stop the server that uses it"):
            await Served(served.runtime).server.start(served.address)

        client = await served.connect()
        client.write(PING)
        await client.take(1)
        client.close()
        await client.closed()

    run(test)


def test_start_and_stop_are_logged_with_the_address(caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: Served) -> None:
        pass

    caplog.set_level("INFO")
    run_virtual(serve(test, sim_runtime()))
    assert [record.getMessage() for record in caplog.records] == [
        "server.started name=test address=127.0.0.1:30000",
        "server.stopped name=test",
    ]


def test_a_connection_accepted_during_stop_is_aborted() -> None:
    async def main() -> None:
        connections = Connections(Dispatcher({}), ConnectionLimits(), is_accepting=True)
        late, transport = connections.create(), RecordingTransport()
        await connections.close("stopping")
        late.connection_made(transport)
        assert transport.ending == "abort"
        late.connection_lost(None)
        await connections.close("stopping")

    asyncio.run(main())
