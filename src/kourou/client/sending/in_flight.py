"""Limits on messages in flight, by count and bytes, and waiting until there are none."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class InFlightCounter(Protocol):
    """Counts messages in flight."""

    def release(self, size: int, messages: int = 1) -> None:
        """Subtract messages that have ended; `size` is the total size of their bodies in bytes."""


class InFlight:
    """Limits messages in flight; callers above the limit wait in order of arrival."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Return the number of messages in flight."""
        return self._messages

    @property
    def size_bytes(self) -> int:
        """Total size of the bodies in flight."""
        return self._bytes

    def try_acquire(self, size: int) -> bool:
        """Add a message of `size` bytes and return True; False, without effect, if it must wait."""
        # `_fits` and `_add` are inlined, because this runs for each message.
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
        """Wait until a message of `size` bytes fits, and add it.

        A message that is larger than the limit fits when no other is in flight.
        """
        if self.try_acquire(size):
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((admitted, size))
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.release(size)  # it was added before the cancellation
            self._wake()
            raise

    def release(self, size: int, messages: int = 1) -> None:
        """Subtract messages that have ended; `size` is the total size of their bodies in bytes."""
        self._messages -= messages
        self._bytes -= size
        if not self._messages:
            self._empty.set()
        if self._waiting:
            self._wake()

    async def wait_empty(self) -> None:
        """Wait until no message is in flight."""
        await self._empty.wait()

    def _fits(self, size: int) -> bool:
        if self._messages == 0:
            return True
        return self._messages < self._messages_max and self._bytes + size <= self._bytes_max

    def _add(self, size: int) -> None:
        if not self._messages:
            self._empty.clear()
        self._messages += 1
        self._bytes += size

    def _wake(self) -> None:
        while self._waiting:
            admitted, size = self._waiting[0]
            if admitted.cancelled():
                self._waiting.popleft()
            elif self._fits(size):
                self._waiting.popleft()
                self._add(size)
                admitted.set_result(None)
            else:
                return


class OperationCounter:
    """Counts operations in flight, without a limit: by `with`, or by `add` and `release`."""

    def __init__(self) -> None:
        self._count = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __enter__(self) -> None:
        self.add()

    def __exit__(self, *_: object) -> None:
        self.release()

    def add(self) -> None:
        """Add one operation."""
        if not self._count:
            self._empty.clear()
        self._count += 1

    def release(self, size: int = 0, messages: int = 1) -> None:  # noqa: ARG002 - as `InFlight`'s
        """Subtract `messages` operations; `size` is ignored."""
        self._count -= messages
        if not self._count:
            self._empty.set()

    @property
    def count(self) -> int:
        """Number of operations in flight."""
        return self._count

    async def wait_empty(self) -> None:
        """Wait until no operation is in flight."""
        await self._empty.wait()
