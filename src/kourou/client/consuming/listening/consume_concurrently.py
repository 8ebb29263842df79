"""Delivers messages to a listener concurrently, in any order.

    the listener    then
    returns         the message is done
    raises          it is sent back to its broker, which redelivers it as `redelivery` says, and
                    after `max_reconsume_times` stores it in the dead-letter topic;
                    if its broker does not accept it, a copy is sent to the retry topic on another;
                    if no broker accepts it, it is redelivered from memory

Source: ConsumeMessageConcurrentlyService.java.
"""

from __future__ import annotations

import asyncio
import logging

from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements, Redeliverer
from kourou.client.consuming.acknowledging.redelivery import redelivery_of
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.listener_calls import ListenerCall
from kourou.client.consuming.listening.listener_runs import (
    THREAD_WAKE_DELAY_S,
    TURN_MESSAGES,
    ListenerRuns,
    Unfinished,
)
from kourou.client.consuming.listening.workers import Workers, end_calls
from kourou.client.consuming.pulling.delivery import Delivery, ReadyMessages
from kourou.clock import Clock

log = logging.getLogger(__name__)


class ConcurrentConsumption:
    """The workers that call a listener.

    Args:
        call: calls the listener; each worker calls it with one message or batch at a time.
        config: number of workers, size of batches, timeouts.
        clock: the wall clock, for start times of deliveries.
        ready: source of the messages.
        acknowledgements: acknowledges messages that are done.
        redeliverer: has failed messages redelivered.
    """

    def __init__(
        self,
        call: ListenerCall,
        config: PushConsumerConfig,
        *,
        clock: Clock,
        ready: ReadyMessages,
        acknowledgements: Acknowledgements,
        redeliverer: Redeliverer,
    ) -> None:
        self._call = call
        self._config = config
        self._batch_max = config.consume_batch_size if call.is_batch else 1
        self._clock = clock
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._redeliverer = redeliverer
        self._runs: ListenerRuns | None = None
        work = self._work if call.is_batch else self._work_in_runs
        self._workers = Workers(work, "listener")

    def start(self) -> None:
        """Start the workers."""
        call = self._call
        if not call.is_batch:
            if not call.is_coroutine:
                self._ready.wake_delay_s = THREAD_WAKE_DELAY_S
            self._runs = call.in_runs(
                self._ready.pop, self._acknowledgements.acknowledge_all, self._clock
            )
        self._workers.resize(self._config.consume_threads)

    def resize(self, count: int) -> None:
        """Change the number of workers; no running call is cut short."""
        if self._workers.resize(count) and self._runs is not None:
            self._runs.interrupt()

    def problems(self) -> list[str]:
        """Return a text for workers that ended unexpectedly, if any."""
        return self._workers.problems()

    async def close(self) -> None:
        """Wait at most `shutdown_timeout_ms` for running calls; `ready` must be closed already.

        Calls cut short then (see `end_calls`) are not acknowledged. If a listener closes its own
        consumer, its own call is not waited for.
        """
        await end_calls(self._workers.other_tasks(), self._config.shutdown_timeout_ms)

    def cancel(self) -> None:
        """Cancel all calls except the caller's own, without waiting for their end."""
        for worker in self._workers.other_tasks():
            worker.cancel()

    async def _wait(self) -> bool:
        """Wait for messages; return False if `ready` is closed or this worker is surplus."""
        if not self._workers.should_continue():
            return False
        self._workers.begin_waiting()
        try:
            return await self._ready.wait()
        finally:
            self._workers.end_waiting()

    async def _work(self) -> None:
        count = 0
        while await self._wait():
            delivery = self._ready.take_now()
            if delivery is not None:
                await self._deliver(delivery)
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)

    async def _work_in_runs(self) -> None:
        """Like `_work`, but call the listener in runs while there are no hooks."""
        call, runs = self._call, self._runs
        assert runs is not None, "start() creates the runs"
        count = 0
        while await self._wait():
            if call.watch.hooks:
                delivery = self._ready.take_now()
                if delivery is not None:
                    await self._deliver(delivery)
                count += 1
                if count % TURN_MESSAGES == 0:
                    await asyncio.sleep(0)
                continue
            unfinished = await runs.run()
            if unfinished is not None:
                await self._finish(unfinished)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._deliver_with_others(delivery)
        except Exception:
            # An internal error must not end the worker. The message is not done, so it blocks the
            # committable offset.
            log.exception("delivery.broken msg_id=%s", delivery.message.msg_id)

    async def _finish(self, unfinished: Unfinished) -> None:
        try:
            await self._end(unfinished.delivery, await self._call.finish(unfinished))
        except Exception:
            log.exception("delivery.broken msg_id=%s", unfinished.delivery.message.msg_id)

    async def _deliver_with_others(self, first: Delivery) -> None:
        deliveries = [first, *self._ready.take_same_queue(first.process_queue, self._batch_max - 1)]
        now_ms = self._clock.now_ms()
        for delivery in deliveries:
            delivery.process_queue.start(delivery.message, now_ms)
        outcome = await self._call([delivery.message for delivery in deliveries])
        for delivery in deliveries:
            await self._end(delivery, outcome.error)

    async def _end(self, delivery: Delivery, error: BaseException | None) -> None:
        """Acknowledge the message if the listener succeeded, else have it redelivered."""
        redelivery = None if error is None else redelivery_of(error, delivery.message)
        if redelivery is None:
            self._acknowledgements.acknowledge(delivery)
        else:
            await self._redeliverer.redeliver(delivery, redelivery)
