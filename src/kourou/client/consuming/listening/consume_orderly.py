"""Delivers the messages of each queue one after the other, in order, under the queue's lock.

    the listener               then
    returns                    the messages are done, or where it commits by itself: finished
    raises                     the queue waits `suspend_queue_ms`, and gives the same again
    raises for the last time   the messages become dead letters, and the queue goes on
    raises RetryLater          as other exceptions, but after the delay that it names
    raises DeadLetter          the messages become dead letters, and the queue goes on

No message is skipped: one that no broker takes as a dead letter is given again. Queues do not wait
for each other, but for one of `consume_threads` turns, of which each lasts
`consume_continuously_ms` at most while others wait.

A queue whose lock is not held for certain rests, and asks for the lock again. A listener of single
messages is called in runs (`ordered_runs`) while no hook wants to be told of each call.

Source: ConsumeMessageOrderlyService.java.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final, Protocol

from kourou.client.background import why_ended
from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.consume_order import QueueOrder
from kourou.client.consuming.listening.listener_runs import TURN_MESSAGES
from kourou.client.consuming.listening.ordered_calls import OrderedCall, OrderedOutcome
from kourou.client.consuming.listening.ordered_runs import OrderedRuns
from kourou.client.consuming.listening.workers import Turns, end_calls, others
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.pulling.delivery import Delivery
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.clock import Clock
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue

log = logging.getLogger(__name__)

_RELOCK_S: Final = 0.1
"""Before a lock that is not held any more is asked for."""

_NOT_LOCKED_S: Final = 3.0
"""Before it is asked for again, in seconds."""


class Locks(Protocol):
    """Which queues are this member's alone."""

    def held_s(self, queue: MessageQueue) -> float:
        """Return how long the queue is nobody else's for certain, in seconds; negative: it is not.

        Another answer may come before: what was lost meanwhile is dropped.
        """

    async def lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Ask for locks, and return those that are held."""


class NoLocks:
    """The locks of a member that gets every queue, whoever else there is."""

    def held_s(self, queue: MessageQueue) -> float:
        """Return that it needs none."""
        del queue
        return math.inf

    async def lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Grant all."""
        return set(queues)


class _Lane:
    """One queue on its way through the listener.

    Attributes:
        order: what comes next.
        call: calls the listener.
        runs: calls it with many messages in a row; None of one that takes batches.
        is_ending: no call begins any more.
        task: runs until it ends.
    """

    def __init__(self, order: QueueOrder, call: OrderedCall, runs: OrderedRuns | None) -> None:
        self.queue = order.process_queue.queue
        self.order = order
        self.call = call
        self.runs = runs
        self.is_ending = False
        self.task: asyncio.Task[None]
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Begin no more calls."""
        self.is_ending = True
        self.interrupt()
        self.wake()

    def interrupt(self) -> None:
        """Look after the call under way whether there is to be another."""
        if self.runs is not None:
            self.runs.interrupt()

    def wake(self) -> None:
        """Have it look at once whether there is something to do."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there may be something to do."""
        self._changed.clear()
        if not self.order.is_waiting and not self.is_ending:
            await self._changed.wait()

    async def rest(self, seconds: float) -> None:
        """Do nothing for so long, whatever comes, unless it is to end."""
        try:
            async with asyncio.timeout(seconds):
                while not self.is_ending:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass


class OrderlyConsumption:
    """The lanes of the queues that are held, one task each.

    Args:
        call: makes what calls the listener for a queue.
        config: number of turns, size of batches, limits of time.
        clock: says when a listener last got a message.
        locks: which queues may be consumed.
        acknowledgements: takes dead letters.
        offsets: where the offsets go that become committable.
    """

    def __init__(
        self,
        call: OrderedCall,
        config: PushConsumerConfig,
        *,
        clock: Clock,
        locks: Locks,
        acknowledgements: Acknowledgements,
        offsets: Offsets,
    ) -> None:
        self._call = call
        self._config = config
        self._batch_max = config.consume_batch_size if call.is_batch else 1
        self._clock = clock
        self._locks = locks
        self._acknowledgements = acknowledgements
        self._offsets = offsets
        self._turns = Turns(config.consume_threads)
        self._lanes: dict[ProcessQueue, _Lane] = {}
        self._is_closed = False

    def put(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume messages that `process_queue` has begun to hold, after those it held before."""
        lane = self._lanes.get(process_queue)
        if lane is None:
            if self._is_closed or process_queue.is_dropped or not messages:
                return
            lane = self._lanes[process_queue] = self._lane(process_queue)
            lane.task = asyncio.create_task(self._work(lane), name=f"order {lane.queue}")
        lane.order.put(messages)
        lane.wake()

    async def drain(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Begin no more calls with messages of the queue, and let the one under way end.

        Returns:
            Whether none is under way any more. One whose task asks for this is not waited for.
        """
        lane = self._lanes.get(process_queue)
        if lane is None:
            return True
        lane.end()
        if lane.task is not asyncio.current_task():
            await asyncio.wait({lane.task}, timeout=timeout_s)
        is_ended = lane.task.done() and not lane.call.is_running
        if is_ended:
            del self._lanes[process_queue]
        return is_ended

    def resize(self, count: int) -> None:
        """Consume so many queues at once from now on; no call is cut short."""
        self._turns.resize(count)
        if self._turns.is_crowded:
            for lane in self._lanes.values():
                lane.interrupt()

    def problems(self) -> list[str]:
        """Return why messages of queues are not consumed, in words."""
        return [
            f"{lane.queue}: its listener's task has ended by {reason}: restart the consumer"
            for lane in self._lanes.values()
            if (reason := why_ended(lane.task)) is not None
        ]

    async def close(self) -> None:
        """Let the calls under way end, at most for `shutdown_timeout_ms`, and begin no more.

        What is cut short then, see `end_calls`, is not acknowledged. A listener may close its own
        consumer: its own call is not waited for.
        """
        self._is_closed = True
        for lane in self._lanes.values():
            lane.end()
        await end_calls(self._others(), self._config.shutdown_timeout_ms)

    def cancel(self) -> None:
        """End all calls now, but the one that asks for it; return without waiting for their end."""
        self._is_closed = True
        for task in self._others():
            task.cancel()

    def _lane(self, process_queue: ProcessQueue) -> _Lane:
        order = QueueOrder(process_queue)
        call = self._call.for_queue(process_queue.queue)
        runs = None
        if not call.is_batch:
            runs = OrderedRuns(call, order, self._clock, lambda: self._commit(order))
        return _Lane(order, call, runs)

    def _others(self) -> list[asyncio.Task[None]]:
        return others(lane.task for lane in self._lanes.values())

    async def _work(self, lane: _Lane) -> None:
        while not lane.is_ending:
            if not lane.order.is_waiting:
                await lane.wait()
            elif self._locks.held_s(lane.queue) < 0:
                await self._lock_again(lane)
            else:
                async with self._turns:
                    rest_s = await self._take_turn(lane)
                if rest_s:
                    await lane.rest(rest_s)

    async def _lock_again(self, lane: _Lane) -> None:
        await lane.rest(_RELOCK_S)
        if not lane.is_ending and lane.queue not in await self._locks.lock([lane.queue]):
            await lane.rest(_NOT_LOCKED_S)

    async def _take_turn(self, lane: _Lane) -> float:
        """Call the listener for a while; return how long the queue is to rest then, in seconds."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + self._config.consume_continuously_ms / 1000
        count = 0
        while not lane.is_ending and lane.order.is_waiting:
            locked_s = self._locks.held_s(lane.queue)
            if locked_s < 0:
                break
            rest_s = await self._call_some(lane, ends_at_s - loop.time(), locked_s)
            if rest_s or loop.time() >= ends_at_s or self._turns.is_crowded:
                return rest_s
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)
        return 0

    async def _call_some(self, lane: _Lane, lasts_s: float, locked_s: float) -> float:
        """Call the listener once or in a run; return how long the queue is to rest then."""
        order = lane.order
        try:
            if lane.runs is None or lane.call.watch.told:
                messages = order.take(self._batch_max)
                order.process_queue.last_consumed_at_ms = self._clock.now_ms()
                return await self._settle(lane, messages, await lane.call.deliver(messages))
            unfinished = await lane.runs.run(lasts_s, locked_s)
            if unfinished is None:
                return 0
            outcome = OrderedOutcome(await lane.call.finish(unfinished))
            return await self._settle(lane, [unfinished.delivery.message], outcome)
        except Exception:
            # A lane must outlive its worst message, and must not skip it.
            log.exception("delivery.broken queue=%s", lane.queue)
            return self._config.suspend_queue_ms / 1000
        finally:
            order.put_back()  # what nobody decided about, as when the task is cancelled

    async def _settle(
        self, lane: _Lane, messages: Sequence[MessageExt], outcome: OrderedOutcome
    ) -> float:
        """Do what follows from how a call with `messages` ended; return how long to rest then."""
        order, config = lane.order, self._config
        for message, how in outcome.dead(messages, config.max_reconsume_times):
            delivery = Delivery(order.process_queue, message)
            if await self._acknowledgements.give_back(delivery, how):
                order.forget(message)
        failed = [message for message in order.taken if outcome.is_failed(message)]
        for message in failed:
            message.reconsume_times += 1
        if outcome.is_rolled_back:
            order.roll_back()
        else:
            order.put_back(failed)
        if outcome.is_committed:
            self._commit(order)
        if failed or outcome.is_rolled_back:
            return outcome.rest_s(failed, config.suspend_queue_ms)
        return 0

    def _commit(self, order: QueueOrder) -> None:
        offset = order.commit()
        if offset is not None:
            self._offsets.update(order.process_queue.queue, offset)
