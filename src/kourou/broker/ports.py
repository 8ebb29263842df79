"""The broker's ports: the main port and, two below it, the VIP port of old clients.

Both serve the same broker. Java does not serve requests that wait for messages on the VIP port, so
that sends there have threads of their own. Here the VIP port refuses the same requests, for clients
that rely on it.

Source: BrokerController.initializeRemotingServer, registerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.errors import ListenFailedError
from kourou.protocol.codes import RequestCode
from kourou.remoting.connection import Connection, FastPath
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import Address
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer

log = logging.getLogger(__name__)

_CODE_AT = len('????????{"code":')
_CODE_BYTES = 2
"""Digits of the request code that are compared; enough to distinguish the codes in use here."""


class FastPaths:
    """Calls the fast path for the first digits of a frame's request code; itself a `FastPath`.

    The fast path that is called checks the whole code.
    """

    def __init__(self, paths: Mapping[int, FastPath]) -> None:
        """Combine `paths`, which are keyed by request code."""
        self._paths = {
            int.from_bytes(str(code)[:_CODE_BYTES].encode(), "big"): path
            for code, path in paths.items()
        }
        assert len(self._paths) == len(paths), "their first digits differ"

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Serve frames from `start` by one fast path; return the end of the last one served.

        Returns `start` if no fast path serves the first frame. Costs 0.1 us a read, or 0.1 us a
        frame where requests of two kinds alternate.
        """
        at = start + _CODE_AT
        if at + _CODE_BYTES > end:
            return start
        path = self._paths.get(buffer[at] << 8 | buffer[at + 1])
        return start if path is None else path(connection, buffer, start, end)


VIP_DISTANCE: Final = 2
"""The VIP port is the main port minus this."""

NOT_ON_VIP_PORT: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
"""Requests that only the main port serves."""


class BrokerPorts:
    """The servers of one broker. Created inside a running loop; started and stopped once.

    Args:
        config: addresses, limits, TLS.
        runtime: provides the network to listen on.
        handlers: request code -> handler, the general path.
        on_connection_closed: called with each connection that has ended.
        fast_paths: request code -> fast path, which is tried before the handler.

    Raises:
        ConfigError: a certificate or key cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        handlers: Mapping[int, Handler],
        on_connection_closed: Callable[[Connection], None],
        fast_paths: Mapping[int, FastPath] | None = None,
    ) -> None:
        self._config = config
        admission = config.transport.admission(config.limits)
        fast = fast_paths or {}

        def server(name: str, handlers: Mapping[int, Handler]) -> RemotingServer:
            known = {code: path for code, path in fast.items() if code in handlers}
            fast_path = FastPaths(known) if known else None
            return RemotingServer(
                runtime, handlers, config.limits, name, on_connection_closed,
                admission=admission, fast_path=fast_path,
            )  # fmt: skip

        self._main = server("broker", handlers)
        self._is_vip_taken = False
        self._vip: RemotingServer | None = None
        if config.vip_port_enable and config.port > VIP_DISTANCE:
            rest = {code: handlers[code] for code in handlers if code not in NOT_ON_VIP_PORT}
            self._vip = server("broker-vip", rest)

    async def start(self) -> Address:
        """Listen, and return the main address with its real port.

        If the VIP port cannot be opened, the broker runs without it.

        Raises:
            AddressInUseError, ListenFailedError: the main port cannot be opened.
        """
        host, port = self._config.listen, self._config.port
        address = await self._main.start((host, port))
        if self._vip is not None:
            try:
                await self._vip.start((host, port - VIP_DISTANCE))
            except ListenFailedError as error:  # AddressInUseError is one as well
                self._is_vip_taken = True
                log.warning("vip_port.not_opened reason=%r", str(error))
        return address

    def without_taken(self, config: BrokerConfig) -> BrokerConfig:
        """Return options with which a VIP port that was taken at the start stays closed.

        It may be the main port of another replica, which is free for a moment while that one
        changes its role, and which it could not open again.
        """
        return replace(config, vip_port_enable=False) if self._is_vip_taken else config

    def create_connection(self) -> Connection:
        """Return the broker's side of a connection to the main port that needs no socket."""
        return self._main.connections.create()

    def go_away(self) -> None:
        """Stop accepting, and redirect clients to other brokers; see `RemotingServer.go_away`."""
        for server in self._servers():
            server.go_away()

    async def stop(self) -> None:
        """Close all connections once their queued output is sent, within `drain_timeout_ms`."""
        async with asyncio.TaskGroup() as stopping:
            for server in self._servers():
                stopping.create_task(server.stop())

    def abort(self) -> None:
        """Abort all connections at once, like a killed process."""
        for server in self._servers():
            server.abort()

    def _servers(self) -> list[RemotingServer]:
        return [self._main] if self._vip is None else [self._main, self._vip]
