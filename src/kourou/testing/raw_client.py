"""A client that sends any bytes it likes, or none: what well-behaved peers never do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame, frame_size
from kourou.remoting.network import Address, Network

_TIMEOUT_S: Final = 30.0
"""How long to wait for what must come: a busy machine is late, and none is an error."""

_BUFFER_BYTES: Final = 64 * 1024


class RawClient(asyncio.BufferedProtocol):
    """One connection, without any rules.

    Attributes:
        received: all bytes that came, in order.
        is_closed: whether the connection has ended.
        writes_paused: how often the transport asked to write no more.
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
            ConnectFailedError: nobody is there.
        """
        return cast(RawClient, await network.connect(address, cls, _TIMEOUT_S))

    def write(self, data: bytes) -> None:
        """Send bytes; they leave as they are."""
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        """Hang up, once what was written has left."""
        assert self.transport is not None
        self.transport.close()

    def pause(self) -> None:
        """Read nothing more: what the peer sends piles up at its side."""
        assert self.transport is not None
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        assert self.transport is not None
        self.transport.resume_reading()

    def frames(self) -> list[RemotingCommand]:
        """Return the whole frames among what was received."""
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
        """Return as soon as `is_true`, which is asked again whenever something happens here.

        Raises:
            TimeoutError: it is still false after `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while not is_true():
                self._changed.clear()
                await self._changed.wait()

    async def take(self, count: int) -> list[RemotingCommand]:
        """Return the first `count` frames, once that many have come.

        Raises:
            TimeoutError: they do not come within 30 s.
        """
        await self.until(lambda: len(self.frames()) >= count)
        return self.frames()[:count]

    async def closed(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Return when the connection has ended.

        Raises:
            TimeoutError: it has not within `timeout_s`.
        """
        await self.until(lambda: self.is_closed, timeout_s)

    # What the event loop calls

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
