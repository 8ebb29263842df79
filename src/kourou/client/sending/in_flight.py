"""Messages under way: a bound on them, by count and by bytes, and waiting for their end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class Places(Protocol):
    """Where messages under way have their places."""

    def release(self, size: int, messages: int = 1) -> None:
        """Give places back: of so many messages, whose bodies have `size` bytes together."""


class InFlight:
    """Slots for messages under way; who finds none waits, first come first served."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Return how many messages are under way."""
        return self._messages

    def take(self, size: int) -> bool:
        """Do as `acquire` if it need not wait; else do nothing and return False."""
        # `_fits` and `_take` without their calls: this is asked for each message.
        messages, size_all = self._messages, self._bytes + size
        if self._waiting:
            return False
        if not messages:
            self._empty.clear()
        elif messages >= self._messages_max or size_all > self._bytes_max:
            return False
        self._messages = messages + 1
        self._bytes = size_all
        return True

    async def acquire(self, size: int) -> None:
        """Wait until a message of `size` bytes fits; one larger than the bound goes alone."""
        if self.take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release(size)  # the turn had come
            self._wake()
            raise

    def release(self, size: int, messages: int = 1) -> None:
        """Give back what `acquire` took; for several messages at once, `size` is that of all."""
        self._messages -= messages
        self._bytes -= size
        if not self._messages:
            self._empty.set()
        if self._waiting:
            self._wake()

    async def wait_empty(self) -> None:
        """Wait until nothing is under way."""
        await self._empty.wait()

    def _fits(self, size: int) -> bool:
        if self._messages == 0:
            return True
        return self._messages < self._messages_max and self._bytes + size <= self._bytes_max

    def _take(self, size: int) -> None:
        if not self._messages:
            self._empty.clear()
        self._messages += 1
        self._bytes += size

    def _wake(self) -> None:
        while self._waiting:
            turn, size = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
            elif self._fits(size):
                self._waiting.popleft()
                self._take(size)
                turn.set_result(None)
            else:
                return


class UnderWay:
    """Counts what is under way, without a bound: `with` blocks, or what was taken and released."""

    def __init__(self) -> None:
        self._count = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        """Count one more."""
        if not self._count:
            self._empty.clear()
        self._count += 1

    def release(self, size: int = 0, messages: int = 1) -> None:  # noqa: ARG002 - as `InFlight`'s
        """Count so many less, whatever their size."""
        self._count -= messages
        if not self._count:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until nothing is under way."""
        await self._empty.wait()
