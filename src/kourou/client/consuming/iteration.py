"""Consumption by `async for`: asking for the next message acknowledges the one before."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Self

from kourou.client.consuming.acknowledgements import Acknowledgements
from kourou.client.consuming.consume_hooks import ConsumeContext
from kourou.client.consuming.consume_watch import ConsumeWatch
from kourou.client.consuming.delivery import Delivery, ReadyMessages
from kourou.clock import Clock
from kourou.model.message import MessageExt

log = logging.getLogger(__name__)


_Body = tuple[asyncio.Task[object] | None, float, tuple[ConsumeContext, float] | None]
"""A loop's body that has a message: its task, since when, in seconds of the loop's clock, and what
hooks were told, if there are any: a context costs as much as a short body."""


class Iteration:
    """The loops over one consumer.

    Args:
        ready: where the messages come from.
        acknowledgements: where the outcomes go.
        clock: says since when a body has a message.
        watch: told of each body.
    """

    def __init__(
        self,
        ready: ReadyMessages,
        acknowledgements: Acknowledgements,
        clock: Clock,
        watch: ConsumeWatch,
    ) -> None:
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._watch = watch
        self._bodies: dict[Delivery, _Body] = {}
        self._changed = asyncio.Event()

    def messages(self) -> MessageLoop:
        """Return a new loop."""
        return MessageLoop(self)

    # The event loop is given, as to ask which one runs costs a system call on Python 3.11.
    async def take(self, loop: asyncio.AbstractEventLoop) -> Delivery | None:
        """Wait for a message and hand it to the body of a loop; None when the consumer closes."""
        delivery = self._ready.take_now() or await self._ready.take()
        if delivery is not None:
            told = self._watch.begin([delivery.message]) if self._watch.told else None
            self._bodies[delivery] = (asyncio.current_task(loop), loop.time(), told)
            delivery.process_queue.start(delivery.message, self._clock.now_ms())
        return delivery

    def end(self, delivery: Delivery, loop: asyncio.AbstractEventLoop, *, is_done: bool) -> None:
        """Acknowledge what `take` gave, or have it taken again before all others."""
        _, began_s, told = self._bodies.pop(delivery)
        if told is not None:
            self._watch.end(told, is_done=is_done)
        else:
            elapsed_ms = (loop.time() - began_s) * 1000
            self._watch.count(delivery.message.topic, 1, elapsed_ms, is_ok=is_done)
        self._changed.set()
        if is_done:
            self._acknowledgements.acknowledge(delivery)
        else:
            delivery.process_queue.postpone(delivery.message)
            self._ready.put_first(delivery)

    async def wait_for_others(self, timeout_ms: int) -> None:
        """Wait until the loop bodies of other tasks have ended, but not longer than that."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while {task for task, _, _ in self._bodies.values()} - {asyncio.current_task()}:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("loop.abandoned count=%d", len(self._bodies))


class MessageLoop:
    """What one `async for` steps through.

    Leaving the `async for`, by whatever way, drops the only reference to this object. That is how
    it is told from asking for the next message, and why there is a `__del__`: the closing of an
    async generator would come some turns of the event loop too late for a loop that follows.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._delivery: Delivery | None = None
        self._iteration = iteration
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            self._iteration.end(delivery, self._loop, is_done=True)
        delivery = self._delivery = await self._iteration.take(self._loop)
        if delivery is None:
            raise StopAsyncIteration
        return delivery.message

    def __del__(self) -> None:
        delivery = self._delivery
        if delivery is None or self._loop.is_closed():
            return
        end = functools.partial(self._iteration.end, delivery, self._loop, is_done=False)
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            end()
        else:  # the garbage collector found it, on another thread
            self._loop.call_soon_threadsafe(end)
