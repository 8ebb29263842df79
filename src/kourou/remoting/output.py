"""Output of a connection: queued during a loop iteration, written at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

CLIENT_WRITE_BYTES: Final = 64 * 1024
"""Queued bytes that a client writes before the loop iteration ends, so that the server can work
on them while the client produces the rest."""


COUNTED_BYTES: Final = 16 * 1024
"""Unread output of one connection up to which it is counted only by the sweep: counting each small
write would cost as much as the write."""


class Sender(Protocol):
    """A connection whose unread output is counted.

    Attributes:
        unread_bytes: bytes that the peer had not read at the last count.
    """

    unread_bytes: int

    def unread_now(self) -> int:
        """Return the number of bytes that were written and not yet read by the peer."""

    def drop(self, reason: str) -> None:
        """Close immediately and log the reason."""


class UnreadOutput:
    """Count of the bytes that the peers of one server have not read, over all connections.

    Nothing reports when peers read, so the total is an upper bound. All connections are counted
    again when it exceeds the limit.

    Attributes:
        total: bytes at the last count.
    """

    def __init__(self, bytes_max: int, senders: Callable[[], Iterable[Sender]]) -> None:
        """Start with a count of zero.

        Args:
            bytes_max: above it, the senders with the most unread output are dropped.
            senders: returns all open connections.
        """
        self._bytes_max = bytes_max
        self._senders = senders
        self.total = 0

    def count(self, sender: Sender, size: int) -> None:
        """Record that the peer of `sender` has `size` bytes unread; may drop this or others."""
        self.total += size - sender.unread_bytes
        sender.unread_bytes = size
        if self.total > self._bytes_max:
            self.recount()

    def forget(self, sender: Sender) -> None:
        """Remove a closed connection from the count."""
        self.total -= sender.unread_bytes
        sender.unread_bytes = 0

    def recount(self) -> None:
        """Count all connections again; drop those with the most unread output above the limit."""
        senders = list(self._senders())
        for sender in senders:
            size = sender.unread_now()
            self.total += size - sender.unread_bytes
            sender.unread_bytes = size
        if self.total <= self._bytes_max:
            return
        for sender in sorted(senders, key=lambda one: -one.unread_bytes):
            sender.drop(
                f"{self.total} bytes of output are unread by all peers, the limit is "
                f"{self._bytes_max}: this peer has {sender.unread_bytes} unread"
            )
            if self.total <= self._bytes_max:
                return


class Output:
    """The frames queued for the next write, and whether sending is paused.

    Attributes:
        size_bytes: bytes queued for the next write.
        is_paused: the peer has too much unread; sending resumes when it has read enough.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._readable: asyncio.Event | None = None  # while it is paused and somebody waits
        self.size_bytes = 0
        self.is_paused = False

    def put(self, frames: bytes) -> None:
        """Queue whole frames."""
        self._frames.append(frames)
        self.size_bytes += len(frames)

    def take(self) -> bytes:
        """Remove and return all queued bytes, for one write."""
        data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self.clear()
        return data

    def clear(self) -> None:
        """Discard the queued frames."""
        self._frames.clear()
        self.size_bytes = 0

    def pause(self) -> None:
        """Make callers of `wait_resumed` wait."""
        self.is_paused = True

    def resume(self) -> None:
        """Wake the callers of `wait_resumed`."""
        self.is_paused = False
        if self._readable is not None:
            self._readable.set()
            self._readable = None

    async def wait_resumed(self, timeout_s: float) -> None:
        """Return when sending is not paused, at once if it is not.

        Raises:
            TimeoutError: it is still paused after `timeout_s`.
        """
        if not self.is_paused:
            return
        async with asyncio.timeout(timeout_s):
            while self.is_paused:  # callers woken earlier may have filled it again
                if self._readable is None:
                    self._readable = asyncio.Event()
                await self._readable.wait()
