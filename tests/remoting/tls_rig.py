"""Shared by tests of TLS: an echo server, its clients, and the event loops to run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.protocol.command import RemotingCommand, request, response
from kourou.remoting.connection import Request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.remoting.tls import TlsClientConfig
from kourou.remoting.transport_config import TransportConfig
from tests.remoting.certificates import Files

ECHO = 10
LIMITS = ConnectionLimits(connect_timeout_ms=30_000)
HOST = "127.0.0.1"
PATIENCE_S = 30.0
"""Seconds to wait for an answer; long, because a busy machine may be slow."""

Test = Callable[["Served"], Coroutine[Any, Any, None]]

RUNNERS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {"asyncio": asyncio.run}
try:
    import uvloop
except ImportError:  # the extra `fast`
    pass
else:
    RUNNERS["uvloop"] = uvloop.run


class Served:
    """An echo server with TLS, and its clients."""

    def __init__(self, config: TransportConfig, limits: ConnectionLimits = LIMITS) -> None:
        self.runtime = Runtime.system()
        self.server = RemotingServer(
            self.runtime, {ECHO: _echo}, limits, "test", admission=config.admission(limits)
        )
        self.address: Address

    async def ping(self, tls: TlsClientConfig | None, body: bytes = b"ping") -> bytes:
        """Return the echo of `body` over a new connection."""
        pool = ConnectionPool(self.runtime, {}, LIMITS, tls=tls)
        try:
            asked = request(ECHO, body=body)
            return (await pool.request(format_address(self.address), asked, PATIENCE_S)).body
        finally:
            await pool.close()


def _echo(asked: Request) -> RemotingCommand:
    return response(asked.command, body=asked.command.body)


async def serve(config: TransportConfig, test: Test, limits: ConnectionLimits = LIMITS) -> None:
    served = Served(config, limits)
    served.address = await served.server.start((HOST, 0))
    try:
        await test(served)
    finally:
        await served.server.stop()


def of_server(files: Files, **more: Any) -> TransportConfig:
    return TransportConfig(tls_server_cert_path=files.cert, tls_server_key_path=files.key, **more)


def of_client(files: Files, **more: Any) -> TlsClientConfig:
    return TlsClientConfig(trust_cert_path=files.root, **more)
