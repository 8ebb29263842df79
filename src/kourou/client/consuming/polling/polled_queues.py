"""The queues that a pull consumer polls, each with its held messages, and polls of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.offsets.offset_store import commit_each
from kourou.client.consuming.offsets.start_offset import find_offset_in_bounds
from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.client.consuming.polling.queue_access import MESSAGES_MAX, QueueAccess
from kourou.client.consuming.polling.queue_turns import HANDOVER_S, QueueTurns
from kourou.client.consuming.pulling.assigned_queues import Assigned, AssignedQueues, BufferState
from kourou.client.consuming.pulling.queue_fetcher import FetchContext, PullTerms, QueueFetcher
from kourou.errors import ClosedError, KourouError, RemoteError, UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData

log = logging.getLogger(__name__)

_PATIENCE_S: Final = HANDOVER_S / 4
"""Seconds that a released queue waits for the poll that acknowledges its returned messages."""

_HELD_BY_BROKER_EXTRA_MS: Final = 10_000
"""Time that a pull may take beyond the time that the broker holds it (30 s and 20 s in Java)."""


def poll_terms(config: PullConsumerConfig) -> PullTerms:
    """Return the sizes and times of the pulls for `poll`."""
    return PullTerms(
        max_messages=config.poll_batch_size,
        max_bytes=config.pull_bytes_max,
        suspend_ms=config.wait_ms,
        timeout_ms=config.wait_ms + _HELD_BY_BROKER_EXTRA_MS,
        unheld_timeout_ms=_HELD_BY_BROKER_EXTRA_MS,
        is_lite=True,
    )


class PollBuffer:
    """Holds the messages of one queue until polls return them.

    Args:
        queue: the queue.
        subscription: sent with each pull.
        owner: the queues of the consumer.
        starts_at_s: the loop's time at which the handover delay is over.

    Attributes:
        queue: as given.
        polled: the messages and offsets.
        subscription: as given, or its replacement.
        starts_at_s: as given.
        turns: calls a user function instead of fetching; None: the queue is fetched.
        max_offset: the queue offset of the next message to be stored; None before the first pull.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        owner: PolledQueues,
        starts_at_s: float,
    ) -> None:
        self.queue = queue
        self.polled = PolledQueue(queue)
        self.subscription = subscription
        self.starts_at_s = starts_at_s
        self.turns: QueueTurns | None = None
        self.max_offset: int | None = None
        self._owner = owner
        self._is_dropped = False
        self._changed = asyncio.Event()  # resumed, or acknowledged

    def has_new_subscription(self) -> bool:
        """Return False: the fetcher is replaced when the subscription changes."""
        return False

    @property
    def next_offset(self) -> int | None:
        """The queue offset to pull next; None until the start offset is known."""
        return self.polled.next_offset

    @property
    def is_dropped(self) -> bool:
        """Whether the queue was released."""
        return self._is_dropped

    @property
    def is_paused(self) -> bool:
        """Whether the user has paused the queue."""
        return self.polled.is_paused

    async def resumed(self) -> None:
        """Wait until the queue is not paused."""
        while self.polled.is_paused:
            self._changed.clear()
            await self._changed.wait()

    def resume(self) -> None:
        """Pull and poll the queue again."""
        self.polled.is_paused = False
        self._changed.set()

    def is_full(self) -> bool:
        """Return whether the messages of this queue, or of all queues, exceed a limit."""
        held, config = self.polled, self._owner.config
        return (
            len(held) > config.pull_threshold_count
            or held.size_bytes > config.pull_threshold_size_bytes
            or held.span > config.consume_max_span
            or self._owner.count > config.pull_threshold_all
        )

    def state(self) -> BufferState:
        """Return the state, for health checks and administrators."""
        held = self.polled
        return BufferState(
            len(held),
            held.size_bytes,
            held.position if len(held) else None,
            held.highest,
            held.done_offset,
            held.polled_at_ms,
        )

    def commit_offset(self) -> int | None:
        """Return None: only polls and commits acknowledge messages."""
        return None

    def committable(self) -> int | None:
        """Return the offset below which all is acknowledged, unless a callback commits."""
        return self.polled.committable if self.turns is None else None

    def put(self, messages: list[MessageExt], next_offset: int) -> None:
        """Hold messages for the next polls."""
        self.polled.put(messages, next_offset)
        if messages:
            self._owner.note_arrived(self)

    async def correct(self, offset: int | None) -> None:
        """Continue at another offset, without the held messages.

        Raises:
            TransportError, RemoteError: the offset could not be determined; nothing was changed.
        """
        if offset is None:
            offset = await self._owner.find_in_bounds(self.queue)
        self.polled.move(offset)

    def acknowledge(self) -> None:
        """Acknowledge all returned messages."""
        self.polled.acknowledge()
        self._changed.set()

    async def drain(self, timeout_s: float) -> bool:
        """Wait for the poll that acknowledges the returned messages."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.polled.is_unacknowledged and not self._owner.is_closed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False  # they are delivered again by the next owner
        return True

    def drop(self) -> None:
        """Mark the queue as released."""
        self._is_dropped = True


class PolledQueues(AssignedQueues[PollBuffer]):
    """The queues of a pull consumer; returns their messages.

    A queue that another member may have held is held immediately, so that it can be sought and
    paused, but its start offset is determined only after the handover delay.

    Args:
        context: the objects and settings of the consumer.
        config: its limits and delays.
        subscriptions: by topic.
        turns_of: returns the turns of a queue with a callback, which is not pulled here, or None.

    Attributes:
        config: as given.
        is_closed: `take` returns without waiting, and no queue is started.
    """

    def __init__(
        self,
        context: FetchContext,
        config: PullConsumerConfig,
        subscriptions: Mapping[str, SubscriptionData],
        turns_of: Callable[[PolledQueue], QueueTurns | None],
    ) -> None:
        super().__init__(
            context,
            drain_s=_PATIENCE_S if config.auto_commit else 0.0,
            is_auto_commit=config.auto_commit,
        )
        self.config = config
        self._subscriptions = subscriptions
        self._turns_of = turns_of
        self._ready: deque[PollBuffer] = deque()  # queues with messages, paused ones too
        self._arrived = asyncio.Event()
        self.is_closed = False
        self._failure: RemoteError | None = None

    @property
    def polled_queues(self) -> list[PolledQueue]:
        """The held messages and offsets of each queue."""
        return [held.buffer.polled for held in self._held.values()]

    @property
    def count(self) -> int:
        """Number of messages held of all queues."""
        return sum(len(held.buffer.polled) for held in self._held.values())

    def get(self, queue: MessageQueue) -> PolledQueue:
        """Return the held messages and offsets of a queue.

        Raises:
            UsageError: the queue is not assigned to this consumer.
        """
        return self._get(queue).polled

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Do nothing: a queue is held already during its handover delay, and a release ends it."""

    async def replace(self, queues: Collection[MessageQueue]) -> None:
        """Hold exactly these queues; those held already continue."""
        async with self._change_lock:
            held = self._held.keys()
            released, added = sorted(held - set(queues)), sorted(set(queues) - held)
            await asyncio.gather(*map(self._release, released))
            await self._start(added, is_shared=False)

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return the `TOPIC_BEGIN_FIELD` of the queue's offset; see `Offsets.topic_begin`."""
        return self._offsets.topic_begin(queue)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets, lower or higher."""
        async with self._change_lock:
            queues = [queue for queue in offsets if queue in self._held]
            for queue in queues:
                if self._held[queue].buffer.turns is None:
                    self.move(queue, offsets[queue])
                self._offsets.overwrite(queue, offsets[queue])
                log.info("offset.reset group=%s queue=%s to=%d", self._group, queue, offsets[queue])
            await self._offsets.persist(queues)

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of the topic's queues with its new subscription; keep held messages."""
        for queue in self.of_topic(topic):
            held = self._held[queue]
            held.task.cancel()
            held.buffer.subscription = self._subscriptions[topic]
            self._poll(held.buffer)

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset immediately.

        Raises:
            UsageError: the queue is not assigned to this consumer, or has a callback.
        """
        buffer = self._get(queue)
        if buffer.turns is not None:
            raise UsageError(f"{queue} has a callback, which chooses the offsets to read")
        self._held[queue].task.cancel()
        self._drop_ready(buffer)
        buffer.polled.move(offset)
        self._poll(buffer)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling and polling these queues; held messages stay held.

        Raises:
            UsageError: one is not assigned to this consumer; nothing is changed.
        """
        for buffer in [self._get(queue) for queue in queues]:
            buffer.polled.is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume these queues.

        Raises:
            UsageError: one is not assigned to this consumer; nothing is changed.
        """
        for buffer in [self._get(queue) for queue in queues]:
            buffer.resume()
        self._arrived.set()

    async def take(self, max_messages: int, timeout_s: float) -> list[MessageExt]:
        """Wait for messages and return them, first those of the queue that has waited longest.

        Returns:
            At most `max_messages`, those of one queue in offset order; none after `timeout_s`, or
            when the consumer closes.

        Raises:
            RemoteError: the error passed to `fail`, once.
        """
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_s
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            taken = self._take(max_messages)
            if taken or self.is_closed:
                break
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(ends_at_s):
                    await self._arrived.wait()
            except TimeoutError:
                break
        return taken

    def fail(self, error: RemoteError) -> None:
        """Make the pending or next `take` raise `error` before it returns messages."""
        self._failure = error
        self._arrived.set()

    def note_arrived(self, buffer: PollBuffer) -> None:
        """Return the messages of a queue by the pending or next `take`."""
        if buffer not in self._ready:
            self._ready.append(buffer)
        self._arrived.set()

    def acknowledge(self) -> None:
        """Acknowledge all returned messages."""
        for held in [*self._held.values(), *self._leaving.values()]:
            held.buffer.acknowledge()

    async def find_in_bounds(self, queue: MessageQueue) -> int:
        """Return the next offset to pull in a queue that ends before this member's offset."""
        offset, _ = await find_offset_in_bounds(self._instance, self._offsets, queue, self.config)
        return offset

    async def end_turns(self) -> None:
        """Start no more callback turns, and wait at most `LEAVE_S` for running ones."""
        await self._stop([held for held in self._held.values() if held.buffer.turns is not None])

    async def close(self) -> None:
        """Stop pulls and polls, and wait for their tasks."""
        self.stop_polls()
        await self._stop(list(self._held.values()))

    def stop_polls(self) -> None:
        """Make `take` return without waiting."""
        self.is_closed = True
        self._arrived.set()

    def abort(self) -> None:
        """Stop pulls and polls without waiting for their tasks."""
        self.stop_polls()
        for held in self._held.values():
            held.task.cancel()

    async def _start(self, queues: Sequence[MessageQueue], *, is_shared: bool) -> bool:
        starts_at_s = asyncio.get_running_loop().time() + (HANDOVER_S if is_shared else 0.0)
        for queue in queues:
            # A topic may have been unsubscribed meanwhile.
            if not self.is_closed and queue.topic in self._subscriptions:
                self._leaving.pop(queue, None)  # its release was cancelled
                self._offsets.forget(queue)  # another member may have committed since
                subscription = self._subscriptions[queue.topic]
                self._poll(PollBuffer(queue, subscription, self, starts_at_s))
        return True

    def _poll(self, buffer: PollBuffer) -> None:
        """Hold a queue, and start its fetcher or its turns."""
        buffer.turns = turns = self._turns_of(buffer.polled)

        async def run(fetcher: QueueFetcher) -> None:
            # A sought queue does not wait for the offset of its previous owner.
            if buffer.next_offset is None:
                delay_s = buffer.starts_at_s - asyncio.get_running_loop().time()
                await asyncio.sleep(max(0.0, delay_s))
            if turns is not None:
                await turns.run()
                return
            while buffer.next_offset is None:
                await self._begin(buffer.polled)
            await fetcher.run()

        self._fetch(buffer, run)

    async def _begin(self, polled: PolledQueue) -> None:
        """Try to determine the start offset of a queue; wait after a failure."""
        queue = polled.queue
        try:
            offset, is_committed = await self._find_start(queue)
        except KourouError as error:
            level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING
            log.log(level, "start_offset.unknown queue=%s reason=%s", queue, error)
        except Exception:
            log.exception("pull.broken queue=%s", queue)
        else:
            polled.begin(offset, is_committed=is_committed)
            log.info("queue.acquired group=%s queue=%s offset=%d", self._group, queue, offset)
            return
        await asyncio.sleep(self.config.start_offset_retry_ms / 1000)

    def _take(self, max_messages: int) -> list[MessageExt]:
        taken: list[MessageExt] = []
        now_ms = self._instance.runtime.clock.now_ms()
        for _ in range(len(self._ready)):
            buffer = self._ready.popleft()
            polled = buffer.polled
            if not polled.is_paused and len(polled):
                taken += polled.take(max_messages - len(taken))
                polled.polled_at_ms = now_ms
            if len(polled):
                self._ready.append(buffer)
            if len(taken) == max_messages:
                break
        return taken

    def _get(self, queue: MessageQueue) -> PollBuffer:
        held = self._held.get(queue)
        if held is None:
            raise UsageError(f"{queue} is not assigned to this consumer: assign it first")
        return held.buffer

    async def _release(
        self, queue: MessageQueue, *, timeout_s: float | None = None, is_last: bool = False
    ) -> None:
        held = self._held.get(queue)
        if held is not None:
            # From here on its messages are neither returned nor moved, even if this is cancelled
            # before the end.
            self._drop_ready(held.buffer)
        await super()._release(queue, timeout_s=timeout_s, is_last=is_last)

    def _drop_ready(self, buffer: PollBuffer) -> None:
        if buffer in self._ready:
            self._ready.remove(buffer)

    async def _stop(self, some: Collection[Assigned[PollBuffer]]) -> None:
        turns = [held.buffer.turns for held in some if held.buffer.turns is not None]
        try:
            await asyncio.gather(*(one.stop() for one in turns))
        finally:
            for held in some:
                held.task.cancel()
        await super()._stop(some)


class Poller:
    """Polls, commits and seeks.

    Args:
        polled: the queues.
        access: queries and commits offsets.
    """

    def __init__(self, polled: PolledQueues, access: QueueAccess) -> None:
        self._polled = polled
        self._access = access
        self._is_polling = False

    async def poll(self, max_messages: int, timeout_ms: int) -> list[MessageExt]:
        """Acknowledge the messages of the previous poll, and return the next.

        Raises:
            UsageError: another task polls, or an argument is out of its range.
            RemoteError: as `PolledQueues.take`.
        """
        if self._is_polling:
            raise UsageError("another task polls this consumer: only one task may poll at a time")
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise UsageError(f"max_messages is {max_messages}: allowed are 1 to {MESSAGES_MAX}")
        if timeout_ms < 0:
            raise UsageError(f"timeout_ms is {timeout_ms}: must not be negative")
        self._polled.acknowledge()
        self._is_polling = True
        try:
            return await self._polled.take(max_messages, timeout_ms / 1000)
        finally:
            self._is_polling = False

    async def commit(self, queue: MessageQueue | None) -> None:
        """Acknowledge and commit the returned messages of a queue; None: of all queues.

        Raises:
            UsageError: the queue is not polled.
            TransportError, RemoteError: some of several queues may be committed.
        """
        polled = self._polled.polled_queues if queue is None else [self._polled.get(queue)]
        for one in polled:
            one.acknowledge()
        offsets = {
            one.queue: (one.committable, self._polled.topic_begin(one.queue))
            for one in polled
            if one.committable is not None
        }

        async def commit(queue: MessageQueue) -> None:
            offset, topic_begin = offsets[queue]
            await self._access.commit_offset(queue, offset, topic_begin)

        await commit_each(offsets, commit)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another queue offset.

        Raises:
            UsageError: the queue is not polled, or the offset is outside its bounds.
        """
        self._polled.get(queue)
        low, high = await asyncio.gather(
            self._access.min_offset(queue), self._access.max_offset(queue)
        )
        if not low <= offset <= high:
            raise UsageError(f"cannot seek {offset}: {queue} has offsets {low} to {high}")
        self._polled.move(queue, offset)
