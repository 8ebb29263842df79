"""What a connection has to send: queued during a turn of the loop, written at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

CLIENT_WRITE_BYTES: Final = 64 * 1024
"""What a client writes before its turn ends: the server works on it while the rest is made."""


COUNTED_BYTES: Final = 16 * 1024
"""Output of one connection that is counted only once a second: counting each small write would
cost as much as the write."""


class Sender(Protocol):
    """A connection, as far as its unread output is counted.

    Attributes:
        unread_bytes: what its peer had not read when it was counted last.
    """

    unread_bytes: int

    def unread_now(self) -> int:
        """Return the bytes that were written and that the peer has not read."""

    def drop(self, reason: str) -> None:
        """Close at once, and log the reason."""


class UnreadOutput:
    """The bytes that the peers of one server have not read, over all its connections.

    What peers read is not reported, so that the total is an upper bound: only when it exceeds the
    limit, all connections are counted again.

    Attributes:
        total: bytes, as they were counted last.
    """

    def __init__(self, bytes_max: int, senders: Callable[[], Iterable[Sender]]) -> None:
        """Start with nothing unread.

        Args:
            bytes_max: above it, the senders with the most unread output are dropped.
            senders: returns all open connections.
        """
        self._bytes_max = bytes_max
        self._senders = senders
        self.total = 0

    def count(self, sender: Sender, size: int) -> None:
        """Note that the peer of `sender` has not read `size` bytes; may drop it, or others."""
        self.total += size - sender.unread_bytes
        sender.unread_bytes = size
        if self.total > self._bytes_max:
            self.recount()

    def forget(self, sender: Sender) -> None:
        """Count nothing of a connection that has ended."""
        self.total -= sender.unread_bytes
        sender.unread_bytes = 0

    def recount(self) -> None:
        """Count all connections, and drop the worst if they exceed the limit together."""
        senders = list(self._senders())
        for sender in senders:
            size = sender.unread_now()
            self.total += size - sender.unread_bytes
            sender.unread_bytes = size
        if self.total <= self._bytes_max:
            return
        for sender in sorted(senders, key=lambda one: -one.unread_bytes):
            sender.drop(
                f"{self.total} bytes wait for all peers to read, {self._bytes_max} may: this one "
                f"has left {sender.unread_bytes} unread"
            )
            if self.total <= self._bytes_max:
                return


class Output:
    """The frames that wait for the next write, and whether the peer reads what was written.

    Attributes:
        size_bytes: what waits for the next write.
        is_paused: so much waits for the peer to read that it shall read first.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._readable = asyncio.Event()
        self._readable.set()
        self.size_bytes = 0
        self.is_paused = False

    def put(self, frames: bytes) -> None:
        """Queue whole frames."""
        self._frames.append(frames)
        self.size_bytes += len(frames)

    def take(self) -> bytes:
        """Return all that is queued, for one write."""
        data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self.clear()
        return data

    def clear(self) -> None:
        """Forget what is queued."""
        self._frames.clear()
        self.size_bytes = 0

    def pause(self) -> None:
        """Let those who want to send wait."""
        self.is_paused = True
        self._readable.clear()

    def resume(self) -> None:
        """Let them send."""
        self.is_paused = False
        self._readable.set()

    async def until_resumed(self, timeout_s: float) -> None:
        """Return when sending is not paused, at once if it is not.

        Raises:
            TimeoutError: it is still paused after `timeout_s`.
        """
        if self._readable.is_set():
            return
        async with asyncio.timeout(timeout_s):
            while not self._readable.is_set():  # those woken before may have filled it again
                await self._readable.wait()
