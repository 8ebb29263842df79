"""The queues that a push consumer holds, each with its process queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.membership.rebalance import HandoverDelays
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.pulling.assigned_queues import (
    Assigned,
    AssignedQueues,
    BufferState,
)
from kourou.client.consuming.pulling.delivery import Consumption
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.client.consuming.pulling.pull_flow import PullFlow
from kourou.client.consuming.pulling.queue_fetcher import FetchContext, PullTerms, QueueFetcher
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData

log = logging.getLogger(__name__)


def push_terms(config: PushConsumerConfig) -> PullTerms:
    """Return the sizes and times of a push consumer's pulls."""
    return PullTerms(
        max_messages=config.pull_batch_size,
        max_bytes=config.pull_batch_bytes,
        suspend_ms=config.pull_suspend_timeout_ms,
        timeout_ms=config.pull_timeout_ms,
        unheld_timeout_ms=config.pull_timeout_ms,
        interval_ms=config.pull_interval_ms,
    )


class PushBuffer:
    """Passes the messages of one queue to its process queue and to the consumption.

    Args:
        process_queue: holds the messages until they are done.
        start: the queue offset to start at.
        owner: the queues of the consumer.

    Attributes:
        process_queue: as given.
        max_offset: the queue offset of the next message to be stored; None before the first pull.
    """

    def __init__(self, process_queue: ProcessQueue, start: int, owner: HeldQueues) -> None:
        self.process_queue = process_queue
        self.max_offset: int | None = None
        self._queue = process_queue.queue
        self._start = self._next_offset = start
        self._owner = owner
        self._flow = owner.flow
        self._consumption = owner.consumption
        self._offsets = owner.offsets
        self._subscription = owner.subscriptions[self._queue.topic]

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return self._queue

    @property
    def subscription(self) -> SubscriptionData:
        """The filter as sent in heartbeats, which may change at any time."""
        subscription = self._owner.subscriptions.get(self._queue.topic)
        if subscription is not None:
            self._subscription = subscription
        return self._subscription

    @property
    def next_offset(self) -> int:
        """The queue offset to pull next."""
        return self._next_offset

    @property
    def is_dropped(self) -> bool:
        """Whether the queue was released or restarted."""
        return self.process_queue.is_dropped

    @property
    def is_paused(self) -> bool:
        """Whether the user has paused the queue."""
        return self._flow.is_paused(self._queue)

    async def resumed(self) -> None:
        """Wait until the queue is not paused."""
        await self._flow.resumed(self._queue)

    def is_full(self) -> bool:
        """Return whether the process queue exceeds a limit."""
        return self._flow.is_full(self.process_queue)

    def state(self) -> BufferState:
        """Return the state, for health checks and administrators."""
        held, done_offset = self.process_queue, self._offsets.get(self._queue)
        return BufferState(
            len(held),
            held.size_bytes,
            held.lowest,
            held.highest,
            self._start if done_offset is None else done_offset,
            held.last_consumed_at_ms,
        )

    def commit_offset(self) -> int | None:
        """Return the queue offset to commit with the next pull; None: nothing is done yet."""
        return (self.committable() or None) if self._offsets.is_remote else None

    def committable(self) -> int | None:
        """Return the offset in memory, unless another member may have consumed the queue."""
        return self._offsets.get(self._queue) if self._owner.is_exclusive(self._queue) else None

    def put(self, messages: list[MessageExt], next_offset: int) -> None:
        """Hold and deliver messages; commit up to `next_offset` if none are left to consume."""
        held = self.process_queue
        self._consumption.put(held, held.put(messages))
        self._next_offset = next_offset
        held.advance(next_offset)
        if not len(held):
            # All messages before this offset are done or not subscribed.
            self._offsets.update(self._queue, next_offset)

    async def correct(self, offset: int | None) -> None:
        """Drop the queue, so that it is started again at `offset`.

        Deliveries in progress must not move the offset any more: they belong to the old bounds.
        """
        self._owner.restart(self, offset)

    async def drain(self, timeout_s: float) -> bool:
        """Deliver no more messages, and wait for running listener calls."""
        return await self._consumption.drain(self.process_queue, timeout_s)

    def drop(self) -> None:
        """Drop all messages; nothing is committed any more."""
        self.process_queue.drop()


class HeldQueues(AssignedQueues[PushBuffer]):
    """The queues of a push consumer.

    Without locks, if the group has other members, an assigned queue is started only after the
    handover delay, `handover_ms`, so that its previous owner can release it.

    Args:
        context: the objects and settings of the consumer.
        config: its limits and delays.
        subscriptions: by topic, as sent in heartbeats; may change at any time.
        consumption: receives pulled messages; may be replaced before the first queue starts.

    Attributes:
        flow: flow control of the pulls.
        subscriptions: as given.
        consumption: as given, or its replacement.
        offsets: offset store of the held queues.
    """

    def __init__(
        self,
        context: FetchContext,
        config: PushConsumerConfig,
        subscriptions: Mapping[str, SubscriptionData],
        consumption: Consumption,
    ) -> None:
        super().__init__(
            context,
            drain_s=config.handover_ms / 4000,
            leaving_max_s=config.consume_timeout_ms / 1000,
        )
        self.flow = PullFlow(config)
        self.subscriptions = subscriptions
        self.consumption = consumption
        self.offsets: Offsets = context.offsets
        self._handover_delays = HandoverDelays(config.handover_ms / 1000)
        self._truncated: set[MessageQueue] = set()  # queues that ended before this member's offset

    @property
    def process_queues(self) -> Collection[ProcessQueue]:
        """The process queue of each queue held."""
        return [held.buffer.process_queue for held in self._held.values()]

    def reconfigure(self, config: PushConsumerConfig) -> None:
        """Replace limits, sizes and times, with effect from the next pull on."""
        self.flow.config = self._context.config = config
        self._context.terms = push_terms(config)

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Cancel the handover delay of the topic's other queues: they are assigned elsewhere."""
        self._handover_delays.note_assigned(topic, queues)

    def is_exclusive(self, queue: MessageQueue) -> bool:
        """Return whether no other member can have consumed the queue since it was started."""
        return self.locks is None or self.locks.is_held(queue)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets, lower or higher.

        Their process queues are dropped first, so that deliveries in progress no longer move the
        offset. A message that a listener is processing may be delivered again at the same time.
        """
        async with self._change_lock:
            queues = [queue for queue in offsets if queue in self._held]
            for queue in queues:
                self._held[queue].buffer.drop()
                self._offsets.overwrite(queue, offsets[queue])
                log.info("offset.reset group=%s queue=%s to=%d", self._group, queue, offsets[queue])
            await asyncio.gather(*map(self._release, queues))
        if queues and self.request_pass is not None:
            self.request_pass()

    async def stop_pulling(self) -> None:
        """Stop all pulls; held messages stay held and can be acknowledged."""
        await self._stop(list(self._held.values()))

    async def release_all(self) -> None:
        """Release all queues, leaving ones too, without waiting for delivered messages."""
        releases = [self._release(queue, timeout_s=0, is_last=True) for queue in self.queues]
        leaving = [self._finish_leaving(queue, held, 0) for queue, held in self._leaving.items()]
        await asyncio.gather(*releases, *leaving)
        if self.locks is not None:
            await self.locks.close()

    def drop_all(self) -> None:
        """Drop all queues without committing or unlocking."""
        for held in [*self._held.values(), *self._leaving.values()]:
            held.buffer.drop()
            held.task.cancel()
        self._held.clear()
        self._leaving.clear()

    def drop_lost(self, queue: MessageQueue) -> None:
        """Drop a queue that another member may have consumed meanwhile, without committing.

        Results of running listener calls are ignored.
        """
        held = self._held.get(queue)
        if held is None:
            return
        held.buffer.drop()
        self._offsets.forget(queue)  # the other member's offset is newer
        self._start_over(queue, held)

    def restart(self, buffer: PushBuffer, offset: int | None) -> None:
        """Drop a queue, and start it again at another offset; None: within its bounds."""
        queue = buffer.queue
        buffer.drop()
        if offset is None:
            self._offsets.forget(queue)
            self._truncated.add(queue)
        else:
            self._offsets.overwrite(queue, offset)
        held = self._held.get(queue)
        if held is not None and held.buffer is buffer:
            self._start_over(queue, held)

    async def _start(self, queues: Sequence[MessageQueue], *, is_shared: bool) -> bool:
        free = [queue for queue in queues if queue not in self._leaving]
        if self.locks is not None and free:
            granted = await self.locks.lock(free)
            free = [queue for queue in free if queue in granted]
        elif is_shared:
            free = [queue for queue in free if self._is_handover_over(queue)]
        try:
            outcomes = await asyncio.gather(*map(self._add, free), return_exceptions=True)
        finally:
            if self.locks is not None:
                await self.locks.unlock([queue for queue in free if queue not in self._held])
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return len(free) == len(queues)

    def _is_handover_over(self, queue: MessageQueue) -> bool:
        """Return whether the queue's handover delay is over; if not, request a pass at its end.

        The current pass does not wait for it, because it must release other queues.
        """
        loop = asyncio.get_running_loop()
        remaining_s = self._handover_delays.remaining_s(queue, loop.time())
        if remaining_s and self.request_pass is not None:
            loop.call_later(remaining_s, self.request_pass)
        return not remaining_s

    async def _add(self, queue: MessageQueue) -> None:
        self._offsets.forget(queue)  # another member may have committed since
        offset, _ = await self._find_start(queue, is_in_bounds=queue in self._truncated)
        self._truncated.discard(queue)
        if queue.topic not in self.subscriptions:
            return  # the topic was unsubscribed meanwhile
        self._fetch(PushBuffer(ProcessQueue(queue), offset, self), self._pull)
        log.info("queue.acquired group=%s queue=%s offset=%d", self._group, queue, offset)

    async def _pull(self, fetcher: QueueFetcher) -> None:
        """Pull a queue until it is dropped; its topic's limit is shared meanwhile."""
        with self.flow.sharing(fetcher.queue):
            await fetcher.run()

    def _start_over(self, queue: MessageQueue, held: Assigned[PushBuffer]) -> None:
        """Release a dropped queue, and request a rebalance pass to start it again."""

        async def restart() -> None:
            async with self._change_lock:
                if self._held.get(queue) is held:
                    await self._release(queue)
            if self.request_pass is not None:
                self.request_pass()

        self._instance.tasks.start(restart, f"restart {queue}")
