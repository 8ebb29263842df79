"""Transports of a connection in memory: bytes in flight, back-pressure, closing and resets.

Each direction is a `Pipe`. Written bytes travel for a random time and arrive in order, sometimes in
two pieces. Like a socket, a pipe accepts bytes up to its window at once; more bytes count as the
sender's buffer, and above the high-water mark its protocol is paused.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from kourou.remoting.network import Address

WINDOW_BYTES: Final = 64 * 1024
"""Bytes in flight in one direction, above which the sender's buffer fills."""

_HIGH_WATER_BYTES: Final = 64 * 1024
_CUT_ODDS: Final = 0.125
"""Probability that a write arrives in two pieces: high enough that every test has some."""


class _End(Enum):
    """An item after the last byte of a direction."""

    EOF = 1
    RESET = 2


class Pipe:
    """One direction of a connection.

    Attributes:
        in_flight_bytes: bytes written and not yet accepted by the receiver.
        receiver: the receiving transport; set once both ends exist.
        sender: the sending transport; set once both ends exist.
    """

    receiver: MemoryTransport
    sender: MemoryTransport

    def __init__(
        self,
        rng: random.Random,
        latency_s: tuple[float, float],
        is_stalled: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._rng = rng
        self._latency_s = latency_s
        self._is_stalled = is_stalled
        self._items: deque[bytes | _End] = deque()
        self._arrived = 0  # number of items, from the first one on, that have arrived
        self._last_due_s = 0.0
        self.in_flight_bytes = 0

    def put(self, data: bytes) -> None:
        """Send `data`."""
        self.in_flight_bytes += len(data)
        if len(data) > 1 and self._rng.random() < _CUT_ODDS:
            cut = self._rng.randrange(1, len(data))
            self._put_item(data[:cut])
            self._put_item(data[cut:])
        else:
            self._put_item(data)

    def put_eof(self) -> None:
        """Send the end of the stream."""
        self._put_item(_End.EOF)

    def put_reset(self) -> None:
        """Send a reset: bytes in the other direction reached a closed end."""
        self._put_item(_End.RESET)

    def clear(self) -> None:
        """Drop all items in flight; their timers then do nothing."""
        self._items.clear()
        self._arrived = 0
        self.in_flight_bytes = 0

    def deliver(self) -> None:
        """Pass arrived items to the receiver until it stops reading."""
        while self._arrived and self.receiver.is_reading() and not self._is_stalled():
            item = self._items.popleft()
            self._arrived -= 1
            if item is _End.EOF:
                self.receiver.receive_eof()
            elif item is _End.RESET:
                self.receiver.force_close(ConnectionResetError("connection reset by peer"))
            else:
                assert isinstance(item, bytes)
                rest = self.receiver.receive(item)
                self.in_flight_bytes -= len(item) - len(rest)
                if rest:
                    self._items.appendleft(rest)
                    self._arrived += 1
                self.sender.on_accepted()

    def _put_item(self, item: bytes | _End) -> None:
        self._items.append(item)
        due_s = self._loop.time() + self._rng.uniform(*self._latency_s)
        self._last_due_s = max(self._last_due_s, due_s)
        self._loop.call_at(self._last_due_s, self._arrive)

    def _arrive(self) -> None:
        # Timers of the same time fire in any order, so each one delivers the next item.
        if self._arrived < len(self._items):
            self._arrived += 1
            self.deliver()


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        outgoing: Pipe,
        incoming: Pipe,
        local_address: Address,
        remote_address: Address,
    ) -> None:
        super().__init__({"sockname": local_address, "peername": remote_address})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._outgoing = outgoing
        self._incoming = incoming
        self._is_paused = False
        self._is_closing = False
        self._is_protocol_paused = False
        self._is_loss_due = False
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        outgoing.sender = self
        incoming.receiver = self

    # Called by the protocol

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing or not data:
            return
        self._outgoing.put(bytes(data))
        if not self._is_protocol_paused and self.get_write_buffer_size() > self._high:
            self._is_protocol_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._outgoing.put_eof()
        self._lose_when_drained()
        self._incoming.deliver()

    def abort(self) -> None:
        if not self._is_loss_due:
            self._outgoing.clear()
            self._outgoing.put_reset()
            self.force_close(None)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    @property
    def is_lost(self) -> bool:
        """True if `connection_lost` of the protocol was called or is scheduled."""
        return self._is_loss_due

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._incoming.deliver)

    def is_reading(self) -> bool:
        return not self._is_paused or self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._outgoing.in_flight_bytes - WINDOW_BYTES)

    # Called by the network

    def receive(self, data: bytes) -> bytes:
        """Pass `data` to the protocol until it pauses; return the rest."""
        if self.is_closing():
            self._outgoing.put_reset()  # like an operating system for a closed socket
            return b""
        while data and not self._is_paused and not self.is_closing():
            space = memoryview(self._protocol.get_buffer(-1))
            size = min(len(space), len(data))
            assert size, "get_buffer must return a buffer with free space"
            space[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)
        return b"" if self.is_closing() else data

    def receive_eof(self) -> None:
        """Pass the end of the stream to the protocol."""
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    def on_accepted(self) -> None:
        """Resume writing if the protocol is paused and the buffer has drained."""
        if self._is_protocol_paused and self.get_write_buffer_size() <= self._low:
            self._is_protocol_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._lose_when_drained()

    def force_close(self, error: Exception | None) -> None:
        """End at once; `connection_lost` is called in the next turn of the loop."""
        self._is_closing = True
        self._incoming.clear()
        self._lose(error)

    def _lose_when_drained(self) -> None:
        if self.get_write_buffer_size() == 0:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_loss_due:
            self._is_loss_due = True
            self._loop.call_soon(self._report_loss, error)

    def _report_loss(self, error: Exception | None) -> None:
        """Report the end, and forget the protocol, as real transports do."""
        protocol, self._protocol = self._protocol, asyncio.BufferedProtocol()
        protocol.connection_lost(error)
