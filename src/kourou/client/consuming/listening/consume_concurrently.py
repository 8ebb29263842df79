"""Delivers messages to a listener, many at a time and in any order.

    the listener    then
    returns         the message is done
    raises          it is given back to its broker, which delivers it again later, or when and
                    if at all `redelivery` says;
                    and after `max_reconsume_times` puts it into the dead-letter topic;
                    if the broker does not take it, a copy goes to the retry topic on another;
                    if none takes it, it is delivered again from memory

Source: ConsumeMessageConcurrentlyService.java.
"""

from __future__ import annotations

import asyncio
import logging

from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements
from kourou.client.consuming.acknowledging.giving_back import GivingBack
from kourou.client.consuming.acknowledging.redelivery import redelivery_of
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.listener_calls import ListenerCall
from kourou.client.consuming.listening.listener_runs import (
    THREAD_PATIENCE_S,
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
        call: calls the listener, with one message or batch at a time by each worker.
        config: number of workers, size of batches, timeouts.
        clock: says since when a listener has a message.
        ready: where the messages come from.
        acknowledgements: told what is done.
        giving_back: told what is not.
    """

    def __init__(
        self,
        call: ListenerCall,
        config: PushConsumerConfig,
        *,
        clock: Clock,
        ready: ReadyMessages,
        acknowledgements: Acknowledgements,
        giving_back: GivingBack,
    ) -> None:
        self._call = call
        self._config = config
        self._batch_max = config.consume_batch_size if call.is_batch else 1
        self._clock = clock
        self._ready = ready
        self._acknowledgements = acknowledgements
        self._giving_back = giving_back
        self._runs: ListenerRuns | None = None
        work = self._work if call.is_batch else self._work_in_runs
        self._workers = Workers(work, "listener")

    def start(self) -> None:
        """Begin to call the listener."""
        call = self._call
        if not call.is_batch:
            if not call.is_coroutine:
                self._ready.patience_s = THREAD_PATIENCE_S
            self._runs = call.in_runs(
                self._ready.pop, self._acknowledgements.acknowledge_all, self._clock
            )
        self._workers.resize(self._config.consume_threads)

    def resize(self, count: int) -> None:
        """Call the listener so many times at once from now on; no call is cut short."""
        if self._workers.resize(count) and self._runs is not None:
            self._runs.interrupt()

    def problems(self) -> list[str]:
        """Return why messages are not consumed by as many workers as are wanted, in words."""
        return self._workers.problems()

    async def close(self) -> None:
        """Let the calls under way end, at most for `shutdown_timeout_ms`; `ready` is closed.

        What is cut short then, see `end_calls`, is not acknowledged. A listener may close its own
        consumer: its own call is not waited for.
        """
        await end_calls(self._workers.others(), self._config.shutdown_timeout_ms)

    def cancel(self) -> None:
        """End all calls now, but the one that asks for it; return without waiting for their end."""
        for worker in self._workers.others():
            worker.cancel()

    async def _wait(self) -> bool:
        """Wait for messages; return False if there will be none, or not for this worker."""
        if not self._workers.is_wanted():
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
        """Work as `_work` does, with a listener that is called in runs unless there are hooks."""
        call, runs = self._call, self._runs
        assert runs is not None, "it was started"
        count = 0
        while await self._wait():
            if call.watch.told:
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
            # A worker must outlive its worst message; that one holds back the commit.
            log.exception("delivery.broken msg_id=%s", delivery.message.msg_id)

    async def _finish(self, unfinished: Unfinished) -> None:
        try:
            await self._end(unfinished.delivery, await self._call.finish(unfinished))
        except Exception:
            log.exception("delivery.broken msg_id=%s", unfinished.delivery.message.msg_id)

    async def _deliver_with_others(self, first: Delivery) -> None:
        deliveries = [first, *self._ready.take_more(first.process_queue, self._batch_max - 1)]
        now_ms = self._clock.now_ms()
        for delivery in deliveries:
            delivery.process_queue.start(delivery.message, now_ms)
        outcome = await self._call([delivery.message for delivery in deliveries])
        for delivery in deliveries:
            await self._end(delivery, outcome.error)

    async def _end(self, delivery: Delivery, error: BaseException | None) -> None:
        """Acknowledge what the listener returned from, and give back what it failed with."""
        how = None if error is None else redelivery_of(error, delivery.message)
        if how is None:
            self._acknowledgements.acknowledge(delivery)
        else:
            await self._giving_back.give_back(delivery, how)
