"""Shared by tests of listeners on real threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from kourou.client.consuming.watching.consume_hooks import ConsumeContext
from kourou.model.message import MessageExt


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until the condition is true; fail after ten seconds."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - threads move it
            await asyncio.sleep(0.001)


class Hook:
    """Records the messages that it was called with."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def before(self, context: ConsumeContext) -> None:
        self.seen.append(context.messages[0].queue_offset)

    def after(self, context: ConsumeContext) -> None:
        assert context.outcome is not None


class Gate:
    """A listener that blocks on one message until the test opens it.

    Attributes:
        got: the offsets of the messages that it was called with.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self.got: list[int] = []
        self._reached, self._opened = threading.Event(), threading.Event()

    def listen(self, message: MessageExt) -> None:
        self.got.append(message.queue_offset)
        if message.queue_offset == self._at:
            self._reached.set()
            assert self._opened.wait(10)

    async def reached(self) -> None:
        """Wait until the listener blocks."""
        assert await asyncio.to_thread(self._reached.wait, 10)

    def open(self) -> None:
        """Let the listener return."""
        self._opened.set()
