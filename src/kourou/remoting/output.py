"""What a connection has to send: queued during a turn of the loop, written at its end."""

from __future__ import annotations

import asyncio
from typing import Final

CLIENT_WRITE_BYTES: Final = 64 * 1024
"""What a client writes before its turn ends: the server works on it while the rest is made."""


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
