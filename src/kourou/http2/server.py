"""A gRPC server: accepts connections on a port, tracks the open ones, and stops in order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Final

from kourou.http2.calls import Method
from kourou.http2.grpc_connection import LINGER_S, GrpcConnection, SharedState
from kourou.http2.limits import GrpcLimits
from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Listener, Network, format_address

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
"""Interval in seconds at which the ages of connections are checked."""


class GrpcServer:
    """Serves methods on one port. Created inside a running loop; started and stopped once.

    Attributes:
        limits: its limits.
        shared: the state that its connections share.
    """

    def __init__(
        self,
        network: Network,
        methods: Mapping[str, Method],
        limits: GrpcLimits | None = None,
        *,
        admission: Admission | None = None,
        name: str = "grpc",
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            network: where it listens.
            methods: by path, such as "/package.Service/Method".
            limits: None: the defaults.
            admission: what may precede HTTP/2, such as TLS; None: nothing.
            name: the server's name in the log.
        """
        self.limits = limits or GrpcLimits()
        self.shared = SharedState(methods, self.limits, name, self._add, self._remove)
        self._loop = asyncio.get_running_loop()
        self._network = network
        self._admission = admission
        self._name = name
        self._listener: Listener | None = None
        self._numbers = itertools.count(1)
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._is_stopping = False

    @property
    def connections(self) -> list[GrpcConnection]:
        """The open connections."""
        return list(self.shared.connections)

    @property
    def calls(self) -> int:
        """Number of open calls."""
        return sum(len(connection.http2.streams) for connection in self.shared.connections)

    async def start(self, address: Address) -> Address:
        """Accept connections and return the address, with the port given when 0 was asked.

        Raises:
            AddressInUseError: another socket listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """
        self._listener = await self._network.listen(address, self.create, admission=self._admission)
        address = self._listener.address
        log.info("server.started name=%s address=%s", self._name, format_address(address))
        return address

    def create(self) -> GrpcConnection:
        """Return the server's side of a new connection."""
        return GrpcConnection(self.shared, next(self._numbers))

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls; close connections after their calls, or after `grace_s` seconds."""
        if self._listener is None or self._is_stopping:
            return
        self._is_stopping = True
        self._listener.close()
        for connection in self.connections:
            connection.drain()
        if not await self._wait_emptied(grace_s):
            log.warning("calls.ended server=%s count=%d", self._name, self.calls)
        for connection in self.connections:
            connection.close()
        if not await self._wait_emptied(2 * LINGER_S):
            for connection in self.connections:
                connection.abort()
            if not await self._wait_emptied(LINGER_S):
                # A transport that never reports its end must not hold up the stop.
                log.error("connections.not_closed count=%d", len(self.shared.connections))
        self.shared.calls.deadlines.close()
        log.info("server.stopped name=%s", self._name)

    async def _wait_emptied(self, timeout_s: float) -> bool:
        """Wait until no connection is open; return False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Stop as a killed process would."""
        self._is_stopping = True
        if self._listener is not None:
            self._listener.close()
        self.shared.calls.deadlines.close()
        for connection in self.connections:
            connection.abort()

    def _add(self, connection: GrpcConnection) -> None:
        """Track a new connection; abort it if there is no room for it."""
        self.shared.connections[connection] = None
        self._emptied.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._check_ages)
        if self._is_stopping:
            connection.abort()
        elif len(self.shared.connections) > self.limits.connections_max:
            connection.drop(f"{self.limits.connections_max} connections are open already")

    def _remove(self, connection: GrpcConnection) -> None:
        """Forget a closed connection."""
        self.shared.connections.pop(connection, None)
        if not self.shared.connections:
            self._emptied.set()
            if self._sweep is not None:
                self._sweep.cancel()
                self._sweep = None

    def _check_ages(self) -> None:
        self._sweep = self._loop.call_later(SWEEP_S, self._check_ages)
        now_s = self._loop.time()
        for connection in self.connections:
            connection.check_ages(now_s)
        self.shared.unread.recount()
        self.shared.memory.check()
