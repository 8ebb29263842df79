"""Delivers the messages of each queue in order, one call at a time, under the queue's lock.

    the listener               then
    returns                    the messages are done; a committing listener: finished
    raises                     the queue is suspended for `suspend_queue_ms`, then the same messages
                               are delivered again
    raises for the last time   the messages become dead letters, and the queue continues
    raises RetryLater          as other exceptions, but after the requested delay
    raises DeadLetter          the messages become dead letters, and the queue continues

No message is skipped: one that no broker accepts as a dead letter is delivered again. Queues are
independent of each other, except that at most `consume_threads` of them have a turn at a time. A
turn lasts at most `consume_continuously_ms` while other queues wait for one.

A queue without a valid lock is not delivered; its lock is requested again. A listener of single
messages is called in runs (`OrderedRuns`) while there are no hooks.

Source: ConsumeMessageOrderlyService.java.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kourou.client.background import failure_of
from kourou.client.consuming.acknowledging.acknowledgements import Acknowledgements
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.consume_order import QueueOrder
from kourou.client.consuming.listening.listener_runs import TURN_MESSAGES, Unfinished
from kourou.client.consuming.listening.ordered_calls import OrderedCall, OrderedOutcome
from kourou.client.consuming.listening.workers import Turns, end_calls, other_tasks
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.pulling.delivery import Delivery, DeliverySource
from kourou.clock import Clock
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue

log = logging.getLogger(__name__)

_RELOCK_S: Final = 0.1
"""Seconds before a lost lock is requested."""

_NOT_LOCKED_S: Final = 3.0
"""Seconds before a lock that was not granted is requested again."""


RUN_MESSAGES: Final = 64
"""Most messages in a run. They share the cost of one hop; a higher limit would save little."""


class OrderedRuns:
    """The runs of one queue, one at a time: consecutive messages with one hop to a thread.

    A run ends before the next message if the lock may be invalid, the queue was dropped, the
    consumer closes, or the queue's turn is over. Between two messages only flags and a clock are
    read, which is safe on any thread.

    Args:
        call: calls the listener with one message.
        order: the queue's messages by state.
        clock: the wall clock, for start times of deliveries.
        on_finished: called after messages of `order` were finished.
    """

    def __init__(
        self,
        call: OrderedCall,
        order: QueueOrder,
        clock: Clock,
        on_finished: Callable[[], None],
    ) -> None:
        self._order = order
        self._on_finished = on_finished
        self._runs = call.in_runs(self._next, self._finish, clock)
        self._time_s = self._runs.time_s
        self._deliveries: deque[Delivery] = deque()
        self._is_first = True
        self._ends_at_s = self._locked_until_s = 0.0

    async def run(self, turn_s: float, locked_s: float) -> Unfinished | None:
        """Call the listener with the next messages until a call fails.

        On return, successful messages are finished, a failed one is still taken, and the others are
        put back.

        Args:
            turn_s: start no more calls after this many seconds, except the first.
            locked_s: start no call at all after this many seconds.
        """
        order, process_queue = self._order, self._order.process_queue
        now_s = self._time_s()
        self._is_first = True
        self._ends_at_s, self._locked_until_s = now_s + turn_s, now_s + locked_s
        self._deliveries.extend(
            [Delivery(process_queue, message) for message in order.take(RUN_MESSAGES)]
        )
        unfinished = None
        try:
            unfinished = await self._runs.run()
        finally:
            self._deliveries.clear()  # an abandoned thread must not take more
            order.put_back_after(0 if unfinished is None else 1)
        return unfinished

    def interrupt(self) -> None:
        """End the current run after its running call; new ones may start."""
        self._locked_until_s = -math.inf

    def _next(self) -> Delivery:
        """Return the next message; raise IndexError if there is none for this run."""
        now_s = self._time_s()
        if now_s > self._locked_until_s or (now_s >= self._ends_at_s and not self._is_first):
            raise IndexError
        self._is_first = False
        return self._deliveries.popleft()

    def _finish(self, deliveries: list[Delivery]) -> None:
        # If the run was abandoned, no messages are taken any more, and this finishes none.
        self._order.finish(len(deliveries))
        self._on_finished()


class Locks(Protocol):
    """The queue locks of this member."""

    def valid_s(self, queue: MessageQueue) -> float:
        """Return for how many seconds the lock is still valid; negative: it is not valid.

        The lock may be lost earlier; the process queue is dropped then.
        """

    async def lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Request locks, and return the queues granted."""


class NoLocks:
    """Grants all locks, for a broadcasting group, whose members do not compete for queues."""

    def valid_s(self, queue: MessageQueue) -> float:
        """Return infinity: the lock never expires."""
        del queue
        return math.inf

    async def lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Return all queues as granted."""
        return set(queues)


class _Lane:
    """The ordered delivery of one queue.

    Attributes:
        order: the queue's messages by state.
        call: calls the listener.
        runs: calls the listener in runs; None for a batch listener.
        locks: the locks of the queue.
        is_ending: no more calls are started.
        task: delivers the messages.
    """

    def __init__(
        self, order: QueueOrder, call: OrderedCall, runs: OrderedRuns | None, locks: Locks
    ) -> None:
        self.queue = order.process_queue.queue
        self.order = order
        self.call = call
        self.runs = runs
        self.locks = locks
        self.is_ending = False
        self.task: asyncio.Task[None]
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Start no more calls."""
        self.is_ending = True
        self.interrupt()
        self.wake()

    def interrupt(self) -> None:
        """End the current run after its running call."""
        if self.runs is not None:
            self.runs.interrupt()

    def wake(self) -> None:
        """Wake the task from `wait` or `sleep`."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there may be messages, or the lane is ending."""
        self._changed.clear()
        if not self.order.is_waiting and not self.is_ending:
            await self._changed.wait()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the lane is ending."""
        try:
            async with asyncio.timeout(seconds):
                while not self.is_ending:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass


class OrderlyConsumption:
    """Delivers the held queues in order, with one lane and task for each.

    Args:
        call: creates the call of the listener for each queue.
        config: number of turns, size of batches, time limits.
        clock: the wall clock, for start times of deliveries.
        locks: the queue locks.
        acknowledgements: stores dead letters.
        offsets: receives the offsets that become committable.
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
        self._lanes: dict[DeliverySource, _Lane] = {}
        self._is_closed = False

    def put(self, process_queue: DeliverySource, messages: Sequence[MessageExt]) -> None:
        """Deliver messages that were added to `process_queue`, after those it held before."""
        lane = self._lanes.get(process_queue)
        if lane is None:
            if self._is_closed or process_queue.is_dropped or not messages:
                return
            lane = self._lanes[process_queue] = self._lane(process_queue)
            lane.task = asyncio.create_task(self._work(lane), name=f"order {lane.queue}")
        lane.order.put(messages)
        lane.wake()

    async def drain(self, process_queue: DeliverySource, timeout_s: float) -> bool:
        """Start no more calls for the queue, and wait at most `timeout_s` for the running one.

        Returns:
            Whether no call is running. If the caller is that call itself, it is not waited for.
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
        """Change the number of queues with a turn at a time; no running call is cut short."""
        self._turns.resize(count)
        if self._turns.is_crowded:
            for lane in self._lanes.values():
                lane.interrupt()

    def problems(self) -> list[str]:
        """Return a text for each queue whose task ended unexpectedly."""
        return [
            f"{lane.queue}: its listener task has stopped: {reason}; restart the consumer"
            for lane in self._lanes.values()
            if (reason := failure_of(lane.task)) is not None
        ]

    async def close(self) -> None:
        """Start no more calls, and wait at most `shutdown_timeout_ms` for the running ones.

        Calls cut short then (see `end_calls`) are not acknowledged. If a listener closes its own
        consumer, its own call is not waited for.
        """
        self._is_closed = True
        for lane in self._lanes.values():
            lane.end()
        await end_calls(self._other_tasks(), self._config.shutdown_timeout_ms)

    def cancel(self) -> None:
        """Cancel all calls except the caller's own, without waiting for their end."""
        self._is_closed = True
        for task in self._other_tasks():
            task.cancel()

    def _lane(self, process_queue: DeliverySource) -> _Lane:
        order = QueueOrder(process_queue)
        call = self._call.for_queue(process_queue.queue)
        runs = None
        if not call.is_batch:
            runs = OrderedRuns(call, order, self._clock, lambda: self._commit(order))
        locks = self._locks if process_queue.needs_lock else NoLocks()
        return _Lane(order, call, runs, locks)

    def _other_tasks(self) -> list[asyncio.Task[None]]:
        return other_tasks(lane.task for lane in self._lanes.values())

    async def _work(self, lane: _Lane) -> None:
        while not lane.is_ending:
            if not lane.order.is_waiting:
                await lane.wait()
            elif lane.locks.valid_s(lane.queue) < 0:
                await self._relock(lane)
            else:
                async with self._turns:
                    suspension_s = await self._take_turn(lane)
                if suspension_s:
                    await lane.sleep(suspension_s)

    async def _relock(self, lane: _Lane) -> None:
        await lane.sleep(_RELOCK_S)
        if not lane.is_ending and lane.queue not in await self._locks.lock([lane.queue]):
            await lane.sleep(_NOT_LOCKED_S)

    async def _take_turn(self, lane: _Lane) -> float:
        """Call the listener during one turn; return the queue's suspension after it in seconds."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + self._config.consume_continuously_ms / 1000
        count = 0
        while not lane.is_ending and lane.order.is_waiting:
            locked_s = lane.locks.valid_s(lane.queue)
            if locked_s < 0:
                break
            suspension_s = await self._call_some(lane, ends_at_s - loop.time(), locked_s)
            if suspension_s or loop.time() >= ends_at_s or self._turns.is_crowded:
                return suspension_s
            count += 1
            if count % TURN_MESSAGES == 0:
                await asyncio.sleep(0)
        return 0

    async def _call_some(self, lane: _Lane, turn_s: float, locked_s: float) -> float:
        """Call the listener once or in a run; return the queue's suspension in seconds."""
        order = lane.order
        try:
            if lane.runs is None or lane.call.watch.hooks:
                messages = order.take(self._batch_max)
                if not messages:
                    return 0
                order.process_queue.last_consumed_at_ms = self._clock.now_ms()
                return await self._settle(lane, messages, await lane.call.deliver(messages))
            unfinished = await lane.runs.run(turn_s, locked_s)
            if unfinished is None:
                return 0
            outcome = OrderedOutcome(await lane.call.finish(unfinished))
            return await self._settle(lane, [unfinished.delivery.message], outcome)
        except Exception:
            # An internal error must not end the lane, and must not skip the message.
            log.exception("delivery.broken queue=%s", lane.queue)
            return self._config.suspend_queue_ms / 1000
        finally:
            order.put_back()  # messages without an outcome, for example after cancellation

    async def _settle(
        self, lane: _Lane, messages: Sequence[MessageExt], outcome: OrderedOutcome
    ) -> float:
        """Apply the outcome of a call with `messages`; return the queue's suspension in seconds."""
        order, config = lane.order, self._config
        for message, redelivery in outcome.dead_letters(messages, config.max_reconsume_times):
            delivery = Delivery(order.process_queue, message)
            if await self._acknowledgements.redeliver(delivery, redelivery):
                order.remove(message)
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
            return outcome.suspension_s(failed, config.suspend_queue_ms)
        return 0

    def _commit(self, order: QueueOrder) -> None:
        offset = order.commit()
        if offset is not None:
            self._offsets.update(order.process_queue.queue, offset)
