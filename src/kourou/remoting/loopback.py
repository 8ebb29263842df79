"""Connections within one process: a `Network` that reaches servers of this process without sockets.

Both ends are ordinary connections; only their transports differ. Bytes written in one iteration of
the event loop arrive in the next one, in one piece. Like a socket, a transport accepts bytes while
its peer does not read, and pauses its protocol above the high-water mark.

A write costs 1 us, and a copy of its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Listener, Network, ProtocolFactory
from kourou.remoting.tls import TlsContext

_HIGH_WATER_BYTES: Final = 64 * 1024
_NONE: Final = asyncio.BufferedProtocol()
"""The protocol of a lost connection; it is not called."""


class LoopbackNetwork:
    """A network in which some addresses are servers of this process.

    Args:
        network: reaches all other addresses.
        servers: the address of each server, and what creates its side of a connection.
        client: the address of the connecting side, which the servers see as their peer's.
    """

    def __init__(
        self, network: Network, servers: Mapping[Address, ProtocolFactory], client: Address
    ) -> None:
        self._network = network
        self._servers = servers
        self._client = client

    async def listen(
        self, address: Address, factory: ProtocolFactory, *, admission: Admission | None = None
    ) -> Listener:
        return await self._network.listen(address, factory, admission=admission)

    async def connect(
        self,
        address: Address,
        factory: ProtocolFactory,
        timeout_s: float,
        *,
        tls: TlsContext | None = None,
    ) -> asyncio.BufferedProtocol:
        create_server = self._servers.get(address)
        if create_server is None:
            return await self._network.connect(address, factory, timeout_s, tls=tls)
        await asyncio.sleep(0)  # a caller may be cancelled here, while there is no connection yet
        accepted, connecting = create_server(), factory()
        server_end = LoopbackTransport(accepted, address, self._client)
        client_end = LoopbackTransport(connecting, self._client, address)
        server_end.peer, client_end.peer = client_end, server_end
        accepted.connection_made(server_end)
        connecting.connection_made(client_end)
        return connecting


class _NoPeer:
    """The other end of a transport when both ends are over: nothing is sent to it."""

    is_over = False
    incoming_bytes = 0
    has_eof = True
    incoming: Final[list[bytes]] = []
    peer: LoopbackTransport | _NoPeer

    def is_closing(self) -> bool:
        return True

    def deliver_soon(self) -> None:
        pass

    def on_read(self) -> None:
        pass

    def end(self) -> None:
        pass


_NO_PEER: Final = _NoPeer()


class LoopbackTransport(asyncio.Transport):
    """One end of a connection within the process.

    Attributes:
        peer: the other end; set before the connection is made, and `_NO_PEER` when both are over.
        incoming: what the peer wrote and this end has not read, oldest first.
        incoming_bytes: their size.
        has_eof: the peer writes nothing more.
        is_lost: `connection_lost` of the protocol was called or is scheduled.
    """

    peer: LoopbackTransport | _NoPeer

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        local_address: Address,
        remote_address: Address,
    ) -> None:
        super().__init__({"sockname": local_address, "peername": remote_address})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self.incoming: list[bytes] = []  # an empty deque takes ten times as much memory
        self.incoming_bytes = 0
        self.has_eof = False
        self._is_due = False
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_closing = False
        self._has_written_eof = False
        self.is_lost = False
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4

    # Called by the protocol of this end

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        peer = self.peer
        if self._is_closing or self._has_written_eof or not data or peer.is_closing():
            return
        peer.incoming.append(bytes(data))
        peer.incoming_bytes += len(data)
        peer.deliver_soon()
        if peer.incoming_bytes > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.peer.incoming_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self.deliver_soon()

    def is_reading(self) -> bool:
        return not self._is_reading_paused and not self._is_closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Write nothing more; what the peer writes until it sees the end is still read."""
        self._has_written_eof = True
        self.peer.has_eof = True
        self.peer.deliver_soon()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """End after the peer has read what was written."""
        if self._is_closing:
            return
        self._is_closing = True
        self.drop_incoming()
        self.peer.has_eof = True
        self.peer.deliver_soon()
        if not self.peer.incoming:
            self.lose()

    def abort(self) -> None:
        """End at once; the peer loses what it has not read, and its connection."""
        self.end()
        self.peer.end()

    # Called by either end

    def deliver_soon(self) -> None:
        if not self._is_due and not self.is_lost:
            self._is_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Pass what the peer wrote to the protocol, until it stops reading."""
        self._is_due = False
        incoming, protocol = self.incoming, self._protocol
        count, at = len(incoming), 0  # later bytes arrive in a later iteration
        try:
            while at < count and self.is_reading():
                data = memoryview(incoming[at])
                at += 1
                while data and self.is_reading():
                    space = memoryview(protocol.get_buffer(len(data)))
                    size = min(len(space), len(data))
                    space[:size] = data[:size]
                    data = data[size:]
                    self.incoming_bytes -= size
                    protocol.buffer_updated(size)
                if len(data) and not self.is_closing():
                    at -= 1
                    incoming[at] = bytes(data)
        finally:
            del incoming[:at]
        self.peer.on_read()
        if not incoming and self.has_eof and not self.is_closing():
            if not protocol.eof_received():
                self.close()
        elif incoming and self.is_reading():
            self.deliver_soon()

    def end(self) -> None:
        """End at once, without the bytes that this end has not read."""
        self._is_closing = True
        self.drop_incoming()
        self.lose()

    def on_read(self) -> None:
        """Resume the writing protocol when its peer has read enough, or end after the last byte."""
        left = self.peer.incoming_bytes
        if self._is_closing:
            if not left:
                self.lose()
        elif self._is_writing_paused and left <= self._low:
            self._is_writing_paused = False
            self._protocol.resume_writing()

    def drop_incoming(self) -> None:
        self.incoming.clear()
        self.incoming_bytes = 0

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self._report_loss)

    def _report_loss(self) -> None:
        protocol, self._protocol = self._protocol, _NONE
        peer = self.peer
        if peer.is_over:  # the ends refer to each other
            peer.peer = self.peer = _NO_PEER
        protocol.connection_lost(None)

    @property
    def is_over(self) -> bool:
        """Whether the protocol knows that the connection is lost, or is about to."""
        return self._protocol is _NONE
