"""Delivers messages to a listener, many at a time and in any order.

    the listener    then
    returns         the message is done
    raises          it is given back to its broker, which delivers it again later
                    and after `max_reconsume_times` puts it into the dead-letter topic;
                    if the broker does not take it, it is delivered again from memory

Source: ConsumeMessageConcurrentlyService.java.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from kourou.client import calls_consume
from kourou.client.background import BackgroundTasks
from kourou.client.consumer_config import PushConsumerConfig
from kourou.client.delivery import Delivery, ReadyMessages
from kourou.client.instance import ClientInstance
from kourou.client.offset_store import Offsets
from kourou.client.process_queue import ProcessQueue
from kourou.clock import Clock
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

Listener = Callable[[MessageExt], Awaitable[object] | object]
"""Consumes one message: returning acknowledges it, raising has it delivered again."""

_OVERDUE_MAX: Final = 16
"""Messages of one queue given back in one look, as in Java: the rest waits for the next."""

_OVERDUE_DELAY_LEVEL: Final = 3
"""10 seconds: the delay of a message whose listener takes too long."""

_CANCELLATION_S: Final = 1.0
"""What a listener may take to clean up after it was cancelled."""

_TURN_MESSAGES: Final = 32
"""Messages after which a worker lets others have the loop, if its listener never waits."""


class Acknowledgements:
    """What ends a delivery: done, or given back.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: its timeouts.
        offsets: where the offsets go that become committable.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        offsets: Offsets,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._offsets = offsets

    def acknowledge(self, delivery: Delivery) -> None:
        """Note that the message is done. Does nothing once the queue belongs to another member."""
        process_queue, message = delivery.process_queue, delivery.message
        offset = process_queue.remove(message)
        if offset is not None:
            self._offsets.update(process_queue.queue, offset)

    async def give_back(self, delivery: Delivery, delay_level: int = 0) -> bool:
        """Have the broker deliver the message again later; return whether it took it.

        A message that is no longer this member's is left alone, and counts as taken.
        """
        if not delivery.is_wanted:
            return True
        message = delivery.message
        instance, config = self._instance, self._config
        timeout_s = config.send_back_timeout_ms / 1000
        queue = delivery.process_queue.queue
        try:
            address = await instance.routes.address(queue.topic, queue.broker_name, timeout_s)
            await calls_consume.send_back(
                instance.pool,
                address,
                self._group,
                message,
                delay_level=delay_level,
                max_reconsume_times=config.max_reconsume_times,
                timeout_s=timeout_s,
            )
        except KourouError as error:
            if error.refresh_route:
                instance.routes.refresh_soon(queue.topic)
            log.warning("message.not_given_back msg_id=%s reason=%s", message.msg_id, error)
            return False
        self.acknowledge(delivery)
        return True


class ConcurrentConsumption:
    """The workers that call a listener.

    Args:
        listener: called with one message at a time by each worker.
        run_blocking: runs a plain function off the event loop; a coroutine function runs on it.
        config: number of workers, timeouts.
        clock: says since when a listener has a message.
        ready: where the messages come from.
        acknowledgements: where the outcomes go.
        tasks: ends with the consumer.
    """

    def __init__(
        self,
        listener: Listener,
        run_blocking: Offload,
        config: PushConsumerConfig,
        *,
        clock: Clock,
        ready: ReadyMessages,
        acknowledgements: Acknowledgements,
        tasks: BackgroundTasks,
    ) -> None:
        self._listener = listener
        self._is_coroutine = is_coroutine_function(listener)
        self._run_blocking = run_blocking
        self._config = config
        self._clock = clock
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._tasks = tasks
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to call the listener."""
        self._workers = [
            asyncio.create_task(self._work(), name=f"listener {number}")
            for number in range(self._config.consume_threads)
        ]

    async def close(self) -> None:
        """Let the calls under way end, at most for `shutdown_timeout_ms`; `ready` is closed.

        What has not ended by then is cancelled, or left to its thread, and not acknowledged. A
        listener may close its own consumer: its own call is not waited for. One that catches its
        cancellation and goes on is left behind after a second.
        """
        workers = self._others()
        if not workers:
            return
        try:
            _, late = await asyncio.wait(workers, timeout=self._config.shutdown_timeout_ms / 1000)
            if late:
                log.warning("listener.abandoned count=%d", len(late))
        finally:
            self.cancel()
        await asyncio.wait(workers, timeout=_CANCELLATION_S)

    def cancel(self) -> None:
        """End all calls now, but the one that asks for it; return without waiting for their end."""
        for worker in self._others():
            worker.cancel()

    def _others(self) -> list[asyncio.Task[None]]:
        try:
            me = asyncio.current_task()
        except RuntimeError:  # not called from a task, nor from the loop
            me = None
        return [worker for worker in self._workers if worker is not me]

    async def _work(self) -> None:
        count = 0
        while (delivery := await self._ready.take()) is not None:
            try:
                await self._deliver(delivery)
            except Exception:
                # A worker must outlive its worst message; that one holds back the commit.
                log.exception("delivery.broken msg_id=%s", delivery.message.msg_id)
            count += 1
            if count % _TURN_MESSAGES == 0:
                await asyncio.sleep(0)

    async def _deliver(self, delivery: Delivery) -> None:
        process_queue, message = delivery.process_queue, delivery.message
        process_queue.start(message, self._clock.now_ms())
        if await self._call(message):
            self._acknowledgements.acknowledge(delivery)
        elif not await self._acknowledgements.give_back(delivery):
            self._deliver_later(delivery)

    async def _call(self, message: MessageExt) -> bool:
        """Return whether the listener returned."""
        try:
            if self._is_coroutine:
                outcome = self._listener(message)
            else:
                outcome = await self._run_blocking(self._listener, message)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            # The listener's own, of something that it awaited: a failure like any other.
            log.warning("listener.cancelled msg_id=%s", message.msg_id)
            return False
        except Exception:
            log.exception(
                "listener.failed topic=%s msg_id=%s reconsume_times=%d",
                message.topic,
                message.msg_id,
                message.reconsume_times,
            )
            return False
        return True

    def _deliver_later(self, delivery: Delivery) -> None:
        """Deliver the message again from memory, after a while; till then it stays held."""
        process_queue, message = delivery.process_queue, delivery.message
        message.reconsume_times += 1
        process_queue.postpone(message)

        async def deliver() -> None:
            await asyncio.sleep(self._config.local_retry_delay_ms / 1000)
            self._ready.put(process_queue, (message,))

        self._tasks.start(deliver, "local retry")


async def give_back_overdue(
    process_queues: Iterable[ProcessQueue],
    acknowledgements: Acknowledgements,
    started_before_ms: int,
) -> None:
    """Give back the messages that listeners got before then and have not ended.

    What such a listener says later counts no more.
    """
    for process_queue in list(process_queues):
        for message in process_queue.overdue(started_before_ms, _OVERDUE_MAX):
            log.warning("message.overdue topic=%s msg_id=%s", message.topic, message.msg_id)
            delivery = Delivery(process_queue, message)
            await acknowledgements.give_back(delivery, _OVERDUE_DELAY_LEVEL)


def is_coroutine_function(listener: Listener) -> bool:
    """Return whether calling the listener makes a coroutine: also for objects with `__call__`."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004  # not whether: which one
    )
