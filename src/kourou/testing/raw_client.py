"""A client that sends arbitrary bytes, or none, as a faulty or hostile peer may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame, frame_size
from kourou.remoting.network import Address, Network

_TIMEOUT_S: Final = 30.0
"""Limit of a wait for something that must happen; long, because a busy machine may be slow."""

_BUFFER_BYTES: Final = 64 * 1024


class RawClient(asyncio.BufferedProtocol):
    """One connection, without any protocol rules.

    Attributes:
        received: all received bytes, in order.
        is_closed: whether the connection has ended.
        writes_paused: number of calls of `pause_writing`.
    """

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_closed = False
        self.writes_paused = 0
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._changed = asyncio.Event()

    @classmethod
    async def connect(cls, network: Network, address: Address) -> RawClient:
        """Return a client that is connected to `address`.

        Raises:
            ConnectFailedError: there is no listener.
        """
        return cast(RawClient, await network.connect(address, cls, _TIMEOUT_S))

    def write(self, data: bytes) -> None:
        """Send bytes unchanged."""
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        """Close the connection once all written bytes are sent."""
        assert self.transport is not None
        self.transport.close()

    def pause(self) -> None:
        """Stop reading, so that the peer's buffer fills."""
        assert self.transport is not None
        self.transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        assert self.transport is not None
        self.transport.resume_reading()

    def frames(self) -> list[RemotingCommand]:
        """Return all complete frames received so far."""
        found = []
        at = 0
        while len(self.received) - at >= 4:
            end = at + 4 + frame_size(self.received, at)
            if end > len(self.received):
                break
            found.append(decode_frame(bytes(self.received[at + 4 : end])))
            at = end
        return found

    async def until(self, is_true: Callable[[], bool], timeout_s: float = _TIMEOUT_S) -> None:
        """Return as soon as `is_true()`; it is called after each event of the connection.

        Raises:
            TimeoutError: it is still false after `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while not is_true():
                self._changed.clear()
                await self._changed.wait()

    async def take(self, count: int) -> list[RemotingCommand]:
        """Return the first `count` frames once they are received.

        Raises:
            TimeoutError: they were not received within 30 s.
        """
        await self.until(lambda: len(self.frames()) >= count)
        return self.frames()[:count]

    async def closed(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Return when the connection has ended.

        Raises:
            TimeoutError: it has not ended within `timeout_s`.
        """
        await self.until(lambda: self.is_closed, timeout_s)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - the loop's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += memoryview(self._buffer)[:nbytes]
        self._changed.set()

    def eof_received(self) -> None:
        self._changed.set()

    def pause_writing(self) -> None:
        self.writes_paused += 1
        self._changed.set()

    def resume_writing(self) -> None:
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        self.is_closed = True
        self._changed.set()
