"""A network in memory, deterministic for a seed.

Faults that servers and clients must survive; `cut`, `stall` and `heal` take a listener's address:

    fault                    simulation
    delay                    each write travels for a random time within `latency_s`
    fragmentation            a write may arrive in two pieces
    slow reader              `pause_writing` and `resume_writing`, as with a socket's buffer
    peer killed, cable cut   `cut`: connections end with an error, new ones are refused
    peer hangs, packets lost `stall`: no bytes arrive, without an error; `heal` delivers them all

It needs no sockets and no threads, so that it runs in the virtual-time loop.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from kourou.errors import AddressInUseError, ConnectFailedError
from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Listener, ProtocolFactory, format_address
from kourou.remoting.tls import TlsContext
from kourou.testing.memory_transport import MemoryTransport, Pipe

LATENCY_S: Final = (0.0001, 0.001)
"""Default limits of a write's travel time, in seconds."""

_LISTEN_PORTS_FROM: Final = 30_000
_CLIENT_PORTS_FROM: Final = 50_000
_CLIENT_HOST: Final = "127.0.0.1"
_ANY_HOSTS: Final = ("0.0.0.0", "::")  # noqa: S104 - matched only, never bound


class MemoryNetwork:
    """Connects all servers and clients that share it. Its faults last until `heal`.

    Args:
        seed: of latencies and fragmentation.
        latency_s: limits of a write's travel time, in seconds.
    """

    def __init__(self, seed: int = 0, latency_s: tuple[float, float] = LATENCY_S) -> None:
        self._rng = random.Random(seed)
        self._latency_s = latency_s
        self._listeners: dict[Address, MemoryListener] = {}
        self._connections: dict[Address, list[_Pair]] = {}
        self._cut: set[Address] = set()
        self._stalled: set[Address] = set()
        self._next_listen_port = _LISTEN_PORTS_FROM
        self._next_client_port = _CLIENT_PORTS_FROM

    async def listen(
        self,
        address: Address,
        factory: ProtocolFactory,
        *,
        admission: Admission | None = None,  # noqa: ARG002 - no TLS or PROXY here
    ) -> Listener:
        host, port = _numeric(address)
        if port == 0:
            port = self._next_listen_port
            self._next_listen_port += 1
        if (host, port) in self._listeners:
            raise AddressInUseError(format_address((host, port)))
        listener = MemoryListener(self._listeners, (host, port), factory)
        self._listeners[host, port] = listener
        return listener

    async def connect(
        self,
        address: Address,
        factory: ProtocolFactory,
        timeout_s: float,
        *,
        tls: TlsContext | None = None,  # noqa: ARG002 - bytes in memory need no TLS
    ) -> asyncio.BufferedProtocol:
        address = _numeric(address)
        there_and_back_s = self._latency() + self._latency()
        if address in self._stalled or there_and_back_s > timeout_s:
            await asyncio.sleep(timeout_s)
            text = f"no connection to {format_address(address)} within {timeout_s:g} s"
            raise ConnectFailedError(text)
        await asyncio.sleep(there_and_back_s)
        listener = self._listener_at(address)
        if listener is None or address in self._cut:
            raise ConnectFailedError(f"no connection to {format_address(address)}: refused")
        self._next_client_port += 1
        pair = _Pair(self, address, (_CLIENT_HOST, self._next_client_port))
        living = [pair for pair in self._connections.get(address, []) if not pair.is_over]
        self._connections[address] = [*living, pair]
        return pair.open(listener.factory(), factory())

    def cut(self, address: Address) -> None:
        """End all connections to `address` with an error, drop bytes in flight, refuse new ones.

        The listener stays, and can be reached again after `heal`.
        """
        address = _numeric(address)
        self._cut.add(address)
        for pair in self._connections.pop(address, []):
            pair.cut()

    def stall(self, address: Address) -> None:
        """Hold all bytes to and from `address`; connecting to it times out."""
        self._stalled.add(_numeric(address))

    def heal(self, address: Address) -> None:
        """Undo `cut` and `stall`: deliver held bytes, accept connections again."""
        address = _numeric(address)
        self._cut.discard(address)
        self._stalled.discard(address)
        for pair in self._connections.get(address, []):
            pair.deliver()

    def is_stalled(self, address: Address) -> bool:
        """Return whether bytes to and from `address` are held."""
        return address in self._stalled

    def pipe(self, address: Address) -> Pipe:
        """Return one direction of a new connection to `address`."""
        return Pipe(self._rng, self._latency_s, lambda: self.is_stalled(address))

    def _latency(self) -> float:
        return self._rng.uniform(*self._latency_s)

    def _listener_at(self, address: Address) -> MemoryListener | None:
        for host in (address[0], *_ANY_HOSTS):
            listener = self._listeners.get((host, address[1]))
            if listener is not None:
                return listener
        return None


class MemoryListener:
    """A listener on a port of a `MemoryNetwork`."""

    def __init__(
        self,
        listeners: dict[Address, MemoryListener],
        address: Address,
        factory: ProtocolFactory,
    ) -> None:
        self._listeners = listeners
        self._address = address
        self.factory = factory

    @property
    def address(self) -> Address:
        return self._address

    def close(self) -> None:
        if self._listeners.get(self._address) is self:
            del self._listeners[self._address]


class _Pair:
    """Both ends of one connection to `server`."""

    def __init__(self, network: MemoryNetwork, server: Address, client: Address) -> None:
        self._server = server
        self._client = client
        self._to_server = network.pipe(server)
        self._to_client = network.pipe(server)

    def open(
        self, accepted: asyncio.BufferedProtocol, connecting: asyncio.BufferedProtocol
    ) -> asyncio.BufferedProtocol:
        """Connect the two protocols and return the connecting one."""
        server_end = MemoryTransport(
            accepted, self._to_client, self._to_server, self._server, self._client
        )
        client_end = MemoryTransport(
            connecting, self._to_server, self._to_client, self._client, self._server
        )
        accepted.connection_made(server_end)
        connecting.connection_made(client_end)
        return connecting

    @property
    def is_over(self) -> bool:
        """True if both ends have lost the connection."""
        return self._to_server.receiver.is_lost and self._to_client.receiver.is_lost

    def cut(self) -> None:
        """End the connection with an error at both ends."""
        for pipe in (self._to_server, self._to_client):
            pipe.clear()
            pipe.receiver.force_close(ConnectionResetError("the network was cut"))

    def deliver(self) -> None:
        """Deliver the held bytes."""
        self._to_server.deliver()
        self._to_client.deliver()


def _numeric(address: Address) -> Address:
    """Return `address` with "localhost", the only name supported, as a number."""
    return ("127.0.0.1", address[1]) if address[0] == "localhost" else address
