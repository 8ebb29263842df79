"""Consumption by `async for`: requesting the next message acknowledges the one before.

The exception is a message that was given back: it is redelivered or stored as a dead letter, and
requesting the next message has no effect on it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Self

from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements, Redeliverer
from kourou.client.consuming.acknowledging.redelivery import is_instruction, redelivery_of
from kourou.client.consuming.pulling.delivery import Delivery, ReadyMessages
from kourou.client.consuming.watching.consume_hooks import ConsumeContext, ConsumeWatch
from kourou.clock import Clock
from kourou.errors import UsageError
from kourou.model.message import MessageExt

log = logging.getLogger(__name__)


_Body = tuple[asyncio.Task[object] | None, float, tuple[ConsumeContext, float] | None]
"""A loop body that has a message: its task, its start in seconds of the loop's clock, and the
result of `ConsumeWatch.begin`, or None without hooks: a context costs as much as a short body."""


class Iteration:
    """The loops over one consumer.

    Args:
        ready: source of the messages.
        acknowledgements: acknowledges messages that are done.
        redeliverer: has messages redelivered.
        clock: the wall clock, for start times of deliveries.
        watch: reports each loop body to hooks and statistics.

    Attributes:
        is_used: a loop was started at some time.
    """

    def __init__(
        self,
        ready: ReadyMessages,
        acknowledgements: Acknowledgements,
        redeliverer: Redeliverer,
        clock: Clock,
        watch: ConsumeWatch,
    ) -> None:
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._redeliverer = redeliverer
        self._clock = clock
        self._watch = watch
        self._bodies: dict[Delivery, _Body] = {}
        self._given_back: set[Delivery] = set()  # given back by a body that still runs
        self._changed = asyncio.Event()
        self.is_used = False

    def messages(self) -> MessageLoop:
        """Return a new loop."""
        self.is_used = True
        return MessageLoop(self)

    async def step(self, current: _Current, loop: asyncio.AbstractEventLoop) -> MessageExt:
        """Acknowledge the message of a loop's last body, and return the next message.

        Raises:
            StopAsyncIteration: the consumer is closing.
        """
        delivery, current.delivery = current.delivery, None
        if delivery is not None:
            self.end(delivery, loop, is_done=True)
        delivery = current.delivery = await self.take(loop)
        if delivery is None:
            raise StopAsyncIteration
        return delivery.message

    # `loop` is a parameter because `get_running_loop` costs a system call on Python 3.11.
    async def take(self, loop: asyncio.AbstractEventLoop) -> Delivery | None:
        """Wait for a message, and take it for a loop body; None when the consumer closes."""
        delivery = self._ready.take_now() or await self._ready.take()
        if delivery is not None:
            began = self._watch.begin([delivery.message]) if self._watch.hooks else None
            self._bodies[delivery] = (asyncio.current_task(loop), loop.time(), began)
            delivery.process_queue.start(delivery.message, self._clock.now_ms())
        return delivery

    def end(self, delivery: Delivery, loop: asyncio.AbstractEventLoop, *, is_done: bool) -> None:
        """Acknowledge a taken message, or put it back at the front of all messages."""
        body = self._bodies.pop(delivery)
        self._changed.set()
        if delivery in self._given_back:
            self._given_back.remove(delivery)
            return
        self._report(delivery, body, loop, None, is_done=is_done)
        if is_done:
            self._acknowledgements.acknowledge(delivery)
        else:
            delivery.process_queue.postpone(delivery.message)
            self._ready.put_first(delivery)

    async def give_back(self, message: MessageExt, error: Exception) -> None:
        """Have a loop body's message redelivered, or stored as a dead letter, as `error` says.

        Raises:
            UsageError: no body has the message, it was given back before, or `error` names other
                messages.
        """
        delivery = next((one for one in self._bodies if one.message is message), None)
        if delivery is None or delivery in self._given_back:
            raise UsageError(
                f"message {message.msg_id} is not the current message of a loop over this "
                "consumer, or was given back before; in a listener, raise instead"
            )
        redelivery = redelivery_of(error, message)
        if redelivery is None:
            raise UsageError(f"{type(error).__name__} names other messages than {message.msg_id}")
        self._given_back.add(delivery)
        loop = asyncio.get_running_loop()
        self._report(delivery, self._bodies[delivery], loop, error, is_done=False)
        if not is_instruction(error):
            log.error(
                "loop.failed topic=%s msg_id=%s reconsume_times=%d",
                message.topic,
                message.msg_id,
                message.reconsume_times,
                exc_info=error,
            )
        try:
            await self._redeliverer.redeliver(delivery, redelivery)
        except BaseException:  # cancelled: it is unknown whether a broker accepted it
            delivery.process_queue.postpone(message)
            self._ready.put_first(Delivery(delivery.process_queue, message))
            raise

    def _report(
        self,
        delivery: Delivery,
        body: _Body,
        loop: asyncio.AbstractEventLoop,
        error: Exception | None,
        *,
        is_done: bool,
    ) -> None:
        """Report the outcome of a body to hooks and statistics."""
        _, began_s, began = body
        if began is not None:
            self._watch.end(began, error, is_done=is_done)
        else:
            elapsed_ms = (loop.time() - began_s) * 1000
            self._watch.count(delivery.message.topic, 1, elapsed_ms, is_ok=is_done)

    async def wait_for_others(self, timeout_ms: int) -> None:
        """Wait at most `timeout_ms` until the loop bodies of other tasks have ended."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while {task for task, _, _ in self._bodies.values()} - {asyncio.current_task()}:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("loop.abandoned count=%d", len(self._bodies))


@dataclass(slots=True)
class _Current:
    """The message that the body of one loop has, if any."""

    delivery: Delivery | None = None


class MessageLoop:
    """The iterator of one `async for`.

    Leaving the `async for` in any way drops the only reference to this object. `__del__` uses this
    to distinguish leaving from requesting the next message. An async generator would be closed some
    loop iterations too late for a loop that follows.

    So no frame may refer to this object, because a stored traceback keeps its frames alive (Python
    3.13). The coroutine of a step therefore refers only to `_Current`.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._current = _Current()
        self._iteration = iteration
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[object, object, MessageExt]:
        return self._iteration.step(self._current, self._loop)

    def __del__(self) -> None:
        delivery = self._current.delivery
        if delivery is None or self._loop.is_closed():
            return
        end = functools.partial(self._iteration.end, delivery, self._loop, is_done=False)
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            end()
        else:  # freed by the garbage collector on another thread
            self._loop.call_soon_threadsafe(end)
