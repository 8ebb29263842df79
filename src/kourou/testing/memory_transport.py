"""The two ends of a connection in memory: bytes in flight, back-pressure, orderly and rude ends.

Each direction is a `Pipe`. What is written to it travels for a random time and arrives in order, at
times in two pieces. Like a socket, it takes what fits its window at once; what is written beyond
that waits in the sender's buffer, and the protocol is told to pause.
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
"""Bytes that a direction takes in flight before the sender's buffer fills."""

_HIGH_WATER_BYTES: Final = 64 * 1024
_CUT_ODDS: Final = 0.125
"""How often a write arrives in two pieces: often enough that every test meets some."""


class _End(Enum):
    """What follows the last byte."""

    EOF = 1
    RESET = 2


class Pipe:
    """One direction of a connection.

    Attributes:
        in_flight_bytes: written and not yet taken by the receiver.
        receiver: where it ends; set once both ends exist.
        sender: where it begins; set once both ends exist.
    """

    receiver: MemoryTransport
    sender: MemoryTransport

    def __init__(
        self,
        chance: random.Random,
        latency_s: tuple[float, float],
        is_stalled: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._chance = chance
        self._latency_s = latency_s
        self._is_stalled = is_stalled
        self._items: deque[bytes | _End] = deque()
        self._arrived = 0  # of the items, from the first one on
        self._last_due_s = 0.0
        self.in_flight_bytes = 0

    def put(self, data: bytes) -> None:
        """Send `data` on its way."""
        self.in_flight_bytes += len(data)
        if len(data) > 1 and self._chance.random() < _CUT_ODDS:
            cut = self._chance.randrange(1, len(data))
            self._put_item(data[:cut])
            self._put_item(data[cut:])
        else:
            self._put_item(data)

    def put_eof(self) -> None:
        """Say that nothing follows."""
        self._put_item(_End.EOF)

    def put_reset(self) -> None:
        """Say that bytes sent the other way came to a closed end."""
        self._put_item(_End.RESET)

    def clear(self) -> None:
        """Lose what is in flight; timers that are set find nothing."""
        self._items.clear()
        self._arrived = 0
        self.in_flight_bytes = 0

    def deliver(self) -> None:
        """Give the receiver what has arrived, as far as it wants it."""
        while self._arrived and self.receiver.is_reading() and not self._is_stalled():
            item = self._items.popleft()
            self._arrived -= 1
            if item is _End.EOF:
                self.receiver.take_eof()
            elif item is _End.RESET:
                self.receiver.force_close(ConnectionResetError("connection reset by peer"))
            else:
                assert isinstance(item, bytes)
                rest = self.receiver.take(item)
                self.in_flight_bytes -= len(item) - len(rest)
                if rest:
                    self._items.appendleft(rest)
                    self._arrived += 1
                self.sender.sent_some()

    def _put_item(self, item: bytes | _End) -> None:
        self._items.append(item)
        due_s = self._loop.time() + self._chance.uniform(*self._latency_s)
        self._last_due_s = max(self._last_due_s, due_s)
        self._loop.call_at(self._last_due_s, self._arrive)

    def _arrive(self) -> None:
        # Timers of the same instant fire in any order: each stands for the next item.
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

    # What a protocol calls

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
        self._lose_when_sent()
        self._incoming.deliver()

    def abort(self) -> None:
        if not self._is_loss_due:
            self._outgoing.clear()
            self._outgoing.put_reset()
            self.force_close(None)

    def is_closing(self) -> bool:
        return self._is_closing

    @property
    def is_lost(self) -> bool:
        """Whether the protocol has heard, or hears in the next turn, that this is over."""
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

    # What the network calls

    def take(self, data: bytes) -> bytes:
        """Give `data` to the protocol as far as it wants it; return what it did not take."""
        if self.is_closing():
            self._outgoing.put_reset()  # as an operating system does for a closed socket
            return b""
        while data and not self._is_paused and not self.is_closing():
            space = memoryview(self._protocol.get_buffer(-1))
            size = min(len(space), len(data))
            assert size, "a protocol must make room before it reads"
            space[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)
        return b"" if self.is_closing() else data

    def take_eof(self) -> None:
        """Tell the protocol that the peer sends no more."""
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    def sent_some(self) -> None:
        """Tell the protocol that it may write again, if it waits for that."""
        if self._is_protocol_paused and self.get_write_buffer_size() <= self._low:
            self._is_protocol_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._lose_when_sent()

    def force_close(self, error: Exception | None) -> None:
        """End at once; the protocol hears of it in the next turn of the loop."""
        self._is_closing = True
        self._incoming.clear()
        self._lose(error)

    def _lose_when_sent(self) -> None:
        if self.get_write_buffer_size() == 0:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_loss_due:
            self._is_loss_due = True
            self._loop.call_soon(self._protocol.connection_lost, error)
