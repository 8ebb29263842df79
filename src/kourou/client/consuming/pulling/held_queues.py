"""The queues that a push consumer holds, each with its process queue, and their flow control."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

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


def topic_share(limit: int, share_count: int) -> int:
    """Return a queue's share of a topic's limit; at least 1."""
    return max(1, limit // max(1, share_count))


class PullFlow:
    """Flow control of a push consumer's pulls: current limits and pauses.

    A topic's limit is divided among the topic's queues that this member holds, so it changes
    whenever queues are assigned or revoked. In Java the topic that changed last sets the limits for
    queues of all topics.

    Source: RebalancePushImpl.messageQueueChanged, DefaultMQPushConsumerImpl.pullMessage.

    Attributes:
        config: the current config; may be replaced at any time.
    """

    def __init__(self, config: PushConsumerConfig) -> None:
        self.config = config
        self._queue_counts: Counter[str] = Counter()  # queues by topic
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()

    @contextmanager
    def sharing(self, queue: MessageQueue) -> Iterator[None]:
        """Count a queue that this member pulls; it shares the limits of its topic."""
        counts, topic = self._queue_counts, queue.topic
        counts[topic] += 1
        try:
            yield
        finally:
            counts[topic] -= 1
            if not counts[topic]:
                del counts[topic]

    def count_limit(self, topic: str) -> int:
        """Return the number of held messages above which a queue of the topic is not pulled."""
        limit = self.config.pull_threshold_topic_count
        if limit is None:
            return self.config.pull_threshold_count
        return topic_share(limit, self._queue_counts[topic])

    def size_limit_bytes(self, topic: str) -> int:
        """Return the number of held bytes above which a queue of the topic is not pulled."""
        limit = self.config.pull_threshold_topic_size_bytes
        if limit is None:
            return self.config.pull_threshold_size_bytes
        return topic_share(limit, self._queue_counts[topic])

    def is_full(self, held: ProcessQueue) -> bool:
        """Return whether a process queue exceeds a limit, so that it is not pulled."""
        topic = held.queue.topic
        return (
            len(held) > self.count_limit(topic)
            or held.size_bytes > self.size_limit_bytes(topic)
            or held.span > self.config.consume_max_span
        )

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pause these queues, held now or later; none means all."""
        self._paused.update(queues)
        self._is_paused |= not queues

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Resume these queues; none means all, individually paused ones too."""
        self._paused.difference_update(queues)
        if not queues:
            self._paused.clear()
            self._is_paused = False
        resumed, self._resumed = self._resumed, asyncio.Event()
        resumed.set()

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the queue is paused."""
        return self._is_paused or queue in self._paused

    async def resumed(self, queue: MessageQueue) -> None:
        """Wait until the queue is not paused."""
        while self.is_paused(queue):
            await self._resumed.wait()


class PushBuffer:
    """Passes the messages of one queue to its process queue and to the consumption.

    Args:
        process_queue: holds the messages until they are done.
        start: the queue offset to start at.
        owner: the queues of the consumer.

    Attributes:
        queue: the queue.
        process_queue: as given.
        subscription: the filter of the next pull.
        next_offset: the queue offset to pull next.
        max_offset: the queue offset of the next message to be stored; None before the first pull.
    """

    def __init__(self, process_queue: ProcessQueue, start: int, owner: HeldQueues) -> None:
        self.process_queue = process_queue
        self.max_offset: int | None = None
        self.queue = process_queue.queue
        self._start = self.next_offset = start
        self._owner = owner
        self._flow = owner.flow
        self._consumption = owner.consumption
        self._offsets = owner.offsets
        self.subscription = owner.subscriptions[self.queue.topic]

    def has_new_subscription(self) -> bool:
        """Update the filter, which heartbeats send and which may change at any time."""
        before = self.subscription
        self.subscription = self._owner.subscriptions.get(self.queue.topic, before)
        return self.subscription is not before

    @property
    def is_dropped(self) -> bool:
        """Whether the queue was released or restarted."""
        return self.process_queue.is_dropped

    @property
    def is_paused(self) -> bool:
        """Whether the user has paused the queue."""
        return self._flow.is_paused(self.queue)

    async def resumed(self) -> None:
        """Wait until the queue is not paused."""
        await self._flow.resumed(self.queue)

    def is_full(self) -> bool:
        """Return whether the process queue exceeds a limit."""
        return self._flow.is_full(self.process_queue)

    def state(self) -> BufferState:
        """Return the state, for health checks and administrators."""
        held, done_offset = self.process_queue, self._offsets.get(self.queue)
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
        return self._offsets.get(self.queue) if self._owner.is_exclusive(self.queue) else None

    def put(self, messages: list[MessageExt], next_offset: int) -> None:
        """Hold and deliver messages; commit up to `next_offset` if none are left to consume."""
        held = self.process_queue
        self._consumption.put(held, held.put(messages))
        self.next_offset = next_offset
        held.advance(next_offset)
        if not len(held):
            # All messages before this offset are done or not subscribed.
            self._offsets.update(self.queue, next_offset)

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
