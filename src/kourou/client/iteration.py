"""Consumption by `async for`: asking for the next message acknowledges the one before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from kourou.client.consume_concurrently import Acknowledgements
from kourou.client.delivery import Delivery, ReadyMessages
from kourou.clock import Clock
from kourou.model.message import MessageExt

log = logging.getLogger(__name__)


class Iteration:
    """The loops over one consumer.

    A loop is a generator: when its caller leaves the `async for`, Python closes it where it stands,
    at its `yield`. That is how a break or an exception is told from asking for the next message.
    """

    def __init__(
        self, ready: ReadyMessages, acknowledgements: Acknowledgements, clock: Clock
    ) -> None:
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._bodies: dict[object, asyncio.Task[object] | None] = {}  # the tasks in loop bodies
        self._changed = asyncio.Event()

    async def messages(self) -> AsyncIterator[MessageExt]:
        """Yield messages until the consumer closes."""
        while (delivery := await self._ready.take()) is not None:
            is_done = False
            body = object()
            self._bodies[body] = asyncio.current_task()
            delivery.process_queue.start(delivery.message, self._clock.now_ms())
            try:
                yield delivery.message
                is_done = True
            finally:
                del self._bodies[body]
                self._changed.set()
                self._end(delivery, is_done=is_done)

    async def wait_for_others(self, timeout_ms: int) -> None:
        """Wait until the loop bodies of other tasks have ended, but not longer than that."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while set(self._bodies.values()) - {asyncio.current_task()}:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("loop.abandoned count=%d", len(self._bodies))

    def _end(self, delivery: Delivery, *, is_done: bool) -> None:
        if is_done:
            self._acknowledgements.acknowledge(delivery)
        else:
            delivery.process_queue.postpone(delivery.message)
            self._ready.put_first(delivery)
