"""Starts of transports that are cancelled leave no connection behind, on any event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.protocol.command import request
from kourou.protocol.frame import encode_frame
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.transport_config import TransportConfig
from tests.remoting.tls_rig import ECHO, HOST, LIMITS, RUNNERS, Served

ITERATIONS = range(8)
"""Iterations of the event loop before the cancellation: it may hit any step of a start."""
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Run:
    return RUNNERS[request.param]


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_server_stops_while_connections_start(
    run: Run, iterations: int, caplog: pytest.LogCaptureFixture
) -> None:
    served: list[Served] = []

    async def main() -> None:
        server = Served(TransportConfig())
        served.append(server)
        address = await server.server.start((HOST, 0))
        clients = [socket.create_connection(address) for _ in range(8)]
        for client in clients:
            client.sendall(encode_frame(request(ECHO)))
        for _ in range(iterations):
            await asyncio.sleep(0)
        server.server.go_away()
        await server.server.stop()
        for client in clients:
            client.close()

    run(main())
    assert len(served[0].server.connections) == 0
    assert "connections.not_closed" not in caplog.text


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_cancelled_connect_leaves_no_connection(
    run: Run, iterations: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = Served(TransportConfig())
        address = format_address(await server.server.start((HOST, 0)))
        pool = ConnectionPool(Runtime.system(), {}, LIMITS)
        connecting = asyncio.create_task(pool.request(address, request(ECHO), 30))
        for _ in range(iterations):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await pool.close()
        await server.server.stop()

    run(main())
    assert "connections.not_closed" not in caplog.text
