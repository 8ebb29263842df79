"""The name server: wires the route table to a port and looks after the brokers' signs of life."""

from __future__ import annotations

import asyncio
import logging

from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.handlers import NamesrvHandlers, log_values
from kourou.namesrv.routes import RouteTable
from kourou.remoting.connection import Connection
from kourou.remoting.network import Address
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer

log = logging.getLogger(__name__)


class NameServer:
    """One name server. Made inside a running loop; started and stopped once.

    Several know nothing of each other: brokers register with every one.
    """

    def __init__(self, config: NamesrvConfig, runtime: Runtime) -> None:
        self._config = config
        self._routes = RouteTable(
            config.broker_timeout_ms, config.brokers_max, config.topic_entries_max
        )
        self._server = RemotingServer(
            runtime,
            NamesrvHandlers(self._routes, _steady_ms).table(),
            config.limits,
            "namesrv",
            self._on_connection_closed,
        )
        self._scan_timer: asyncio.TimerHandle | None = None

    async def start(self) -> Address:
        """Listen, and return the address with the real port.

        Raises:
            AddressInUseError: somebody listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """
        address = await self._server.start((self._config.listen, self._config.port))
        self._schedule_scan()
        return address

    async def stop(self) -> None:
        """Answer nothing more; answers already given leave within `drain_timeout_ms`."""
        self._stop_scanning()
        await self._server.stop()

    def abandon(self) -> None:
        """Stop as a killed process stops: at once, and nobody is told."""
        self._stop_scanning()
        self._server.abort()

    def _schedule_scan(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan_timer = loop.call_later(self._config.scan_interval_ms / 1000, self._scan)

    def _stop_scanning(self) -> None:
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_timer = None

    def _scan(self) -> None:
        """Forget the brokers that fell silent, and close their connections."""
        self._schedule_scan()  # first: the scan goes on whatever one connection does
        for identity, connection in self._routes.expire(_steady_ms()):
            log.warning("broker.expired cluster=%s name=%s id=%d address=%s", *log_values(identity))
            assert isinstance(connection, Connection)
            connection.close("its broker fell silent")

    def _on_connection_closed(self, connection: Connection) -> None:
        for identity in self._routes.unregister_connection(connection):
            log.info(
                "broker.disconnected cluster=%s name=%s id=%d address=%s", *log_values(identity)
            )


def _steady_ms() -> int:
    """Return the running loop's time in ms; its zero has no meaning."""
    return int(asyncio.get_running_loop().time() * 1000)
