"""The queues that a pull consumer polls, each with its reading task."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kourou.client.background import failure_of
from kourou.client.config import MIB
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.membership.rebalance import QueueChanges
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.client.consuming.polling.queue_reader import QueueReader
from kourou.client.consuming.polling.queue_turns import HANDOVER_S, QueueTurns
from kourou.client.consuming.pulling.pulled_messages import OnPulled
from kourou.client.instance import ClientInstance
from kourou.errors import RemoteError, UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.running_info import ProcessQueueInfo

log = logging.getLogger(__name__)

_PATIENCE_S: Final = HANDOVER_S / 4
"""Seconds that a released queue waits for the poll that acknowledges its returned messages."""


@dataclass(slots=True)
class _Polled:
    queue: PolledQueue
    reader: QueueReader
    reading: asyncio.Task[None]
    turns: QueueTurns | None


class PolledQueues:
    """Starts and releases queues, and returns their messages.

    When a queue is released, its acknowledged offset is committed, so that the next owner starts
    there.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: start position, limits and delays.
        subscriptions: by topic.
        offsets: offset store of the queues.
        on_pulled: counts pulls that found messages.
        turns_of: returns the turns of a queue with a callback, which is not pulled here, or None.

    Attributes:
        request_pass: unused here: a queue whose offset the broker refuses recovers in its own task.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PullConsumerConfig,
        *,
        subscriptions: Mapping[str, SubscriptionData],
        offsets: Offsets,
        on_pulled: OnPulled,
        turns_of: Callable[[PolledQueue], QueueTurns | None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._on_pulled = on_pulled
        self._turns_of = turns_of
        self._polled: dict[MessageQueue, _Polled] = {}
        self._ready: deque[PolledQueue] = deque()  # queues with messages, paused ones too
        self._arrived = asyncio.Event()
        self._leaving: set[PolledQueue] = set()  # released with unacknowledged messages
        self._acknowledged = asyncio.Event()
        self._change_lock = asyncio.Lock()  # a queue must be released before it is restarted
        self._is_closed = False
        self._failure: RemoteError | None = None
        self.request_pass: Callable[[], None] | None = None

    @property
    def queues(self) -> list[MessageQueue]:
        """All queues, sorted."""
        return sorted(self._polled)

    @property
    def polled_queues(self) -> list[PolledQueue]:
        """The held messages and offsets of each queue."""
        return [polled.queue for polled in self._polled.values()]

    @property
    def failing(self) -> list[MessageQueue]:
        """The queues whose brokers do not answer pulls, sorted."""
        return sorted(queue for queue, one in self._polled.items() if one.reader.is_failing)

    @property
    def count(self) -> int:
        """Number of messages held of all queues."""
        return sum(len(polled.queue) for polled in self._polled.values())

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues of one topic."""
        return [queue for queue in self._polled if queue.topic == topic]

    def topics(self) -> set[str]:
        """Return the topics of all queues."""
        return {queue.topic for queue in self._polled}

    def get(self, queue: MessageQueue) -> PolledQueue:
        """Return the held messages and offsets of a queue.

        Raises:
            UsageError: the queue is not assigned to this consumer.
        """
        return self._get(queue).queue

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Do nothing: a queue is held already during its handover delay, and a release ends it."""

    async def apply(self, changes: QueueChanges) -> bool:
        """Release queues and start others, whose start offsets are determined by their tasks."""
        async with self._change_lock:
            await self._apply(changes.released, changes.added, is_shared=changes.is_shared)
        return True

    async def replace(self, queues: Collection[MessageQueue]) -> None:
        """Hold exactly these queues; those held already continue."""
        async with self._change_lock:
            held = self._polled.keys()
            await self._apply(sorted(held - set(queues)), sorted(set(queues) - held))

    def problem(self, queue: MessageQueue) -> str | None:
        """Return why the queue is not pulled, if for another reason than its broker's failure."""
        polled = self._get(queue)
        reason = failure_of(polled.reading)
        if reason is not None:
            return f"its reads have stopped: {reason}; restart the consumer"
        return polled.reader.problem

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return the `TOPIC_BEGIN_FIELD` of the queue's offset; see `Offsets.topic_begin`."""
        return self._offsets.topic_begin(queue)

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return the state of each queue in the form reported to administrators."""
        return {
            queue: ProcessQueueInfo(
                commit_offset=polled.queue.done_offset or 0,
                cached_msg_min_offset=(polled.queue.position or 0) if len(polled.queue) else 0,
                cached_msg_max_offset=polled.queue.highest or 0,
                cached_msg_count=len(polled.queue),
                cached_msg_size_in_mib=polled.queue.size_bytes // MIB,
                last_pull_timestamp=polled.reader.last_pull_at_ms,
                last_consume_timestamp=polled.queue.polled_at_ms,
            )
            for queue, polled in sorted(self._polled.items())
        }

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the done offset of each of the topic's queues; may be ahead of the committed."""
        known = {queue: self._polled[queue].queue.done_offset for queue in self.of_topic(topic)}
        return {queue: offset for queue, offset in sorted(known.items()) if offset is not None}

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets, lower or higher."""
        async with self._change_lock:
            queues = [queue for queue in offsets if queue in self._polled]
            for queue in queues:
                if self._polled[queue].turns is None:
                    self.move(queue, offsets[queue])
                self._offsets.overwrite(queue, offsets[queue])
                log.info("offset.reset group=%s queue=%s to=%d", self._group, queue, offsets[queue])
            await self._offsets.persist(queues)

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of the topic's queues with its new subscription; keep held messages."""
        for queue in self.of_topic(topic):
            polled = self._polled[queue]
            polled.reading.cancel()
            self._read(polled.queue)

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset immediately.

        Raises:
            UsageError: the queue is not assigned to this consumer, or has a callback.
        """
        polled = self._get(queue)
        if polled.turns is not None:
            raise UsageError(f"{queue} has a callback, which chooses the offsets to read")
        polled.reading.cancel()
        polled.queue.move(offset)
        self._drop_ready(polled.queue)
        self._read(polled.queue)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling and polling these queues; held messages stay held.

        Raises:
            UsageError: one is not assigned to this consumer; nothing is changed.
        """
        for polled in [self._get(queue) for queue in queues]:
            polled.queue.is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume these queues.

        Raises:
            UsageError: one is not assigned to this consumer; nothing is changed.
        """
        for polled in [self._get(queue) for queue in queues]:
            polled.queue.is_paused = False
            polled.reader.resume()
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
            if taken or self._is_closed:
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

    def acknowledge(self) -> None:
        """Acknowledge all returned messages."""
        for polled in self._polled.values():
            polled.queue.acknowledge()
        for leaving in self._leaving:
            leaving.acknowledge()
        self._leaving.clear()
        acknowledged, self._acknowledged = self._acknowledged, asyncio.Event()
        acknowledged.set()

    async def persist(self) -> None:
        """Commit the acknowledged offsets of all queues. Failures are logged."""
        await self._commit(self._polled.values())

    async def end_turns(self) -> None:
        """Start no more callback turns, and wait at most `LEAVE_S` for running ones."""
        await self._stop([one for one in self._polled.values() if one.turns is not None])

    async def close(self) -> None:
        """Stop pulls and polls, and wait for their tasks."""
        self.stop_polls()
        await self._stop(list(self._polled.values()))

    def stop_polls(self) -> None:
        """Make `take` return without waiting."""
        self._is_closed = True
        self._arrived.set()

    def abort(self) -> None:
        """Stop pulls and polls without waiting for their tasks."""
        self.stop_polls()
        for polled in self._polled.values():
            polled.reading.cancel()

    async def _apply(
        self,
        released: Iterable[MessageQueue],
        added: Iterable[MessageQueue],
        *,
        is_shared: bool = False,
    ) -> None:
        await asyncio.gather(*map(self._release, released))
        for queue in added:
            # A topic may have been unsubscribed meanwhile.
            if not self._is_closed and queue.topic in self._subscriptions:
                self._offsets.forget(queue)  # another member may have committed since
                self._read(PolledQueue(queue), is_shared=is_shared)

    async def _commit(self, some: Iterable[_Polled]) -> None:
        chosen = []
        for polled in some:
            offset = polled.queue.committable
            if offset is not None and polled.turns is None and not polled.reader.is_failing:
                self._offsets.overwrite(polled.queue.queue, offset)
                chosen.append(polled.queue.queue)
        await self._offsets.persist(chosen)

    def _take(self, max_messages: int) -> list[MessageExt]:
        taken: list[MessageExt] = []
        now_ms = self._instance.runtime.clock.now_ms()
        for _ in range(len(self._ready)):
            polled = self._ready.popleft()
            if not polled.is_paused and len(polled):
                taken += polled.take(max_messages - len(taken))
                polled.polled_at_ms = now_ms
            if len(polled):
                self._ready.append(polled)
            if len(taken) == max_messages:
                break
        return taken

    def _get(self, queue: MessageQueue) -> _Polled:
        polled = self._polled.get(queue)
        if polled is None:
            raise UsageError(f"{queue} is not assigned to this consumer: assign it first")
        return polled

    def _read(self, polled: PolledQueue, *, is_shared: bool = False) -> None:
        reader = QueueReader(
            self._instance,
            self._group,
            self._config,
            subscription=self._subscriptions[polled.queue.topic],
            polled=polled,
            offsets=self._offsets,
            held_all=lambda: self.count,
            on_arrived=self._on_arrived,
            on_pulled=self._on_pulled,
        )
        turns = self._turns_of(polled)
        delay_s = HANDOVER_S if is_shared else 0.0
        work = _run_after(delay_s, reader) if turns is None else turns.run(delay_s)
        reading = asyncio.create_task(work, name=f"read {polled.queue}")
        self._polled[polled.queue] = _Polled(polled, reader, reading, turns)

    def _on_arrived(self, polled: PolledQueue) -> None:
        if polled not in self._ready:
            self._ready.append(polled)
        self._arrived.set()

    async def _release(self, queue: MessageQueue) -> None:
        polled = self._polled.pop(queue, None)
        if polled is None:
            return
        # From here on its messages are neither returned nor moved, even if this is cancelled before
        # the end.
        self._drop_ready(polled.queue)
        await self._stop([polled])
        if self._config.auto_commit:
            await self._await_acknowledgement(polled.queue)
            await self._commit([polled])
        self._offsets.forget(queue)
        log.info("queue.released group=%s queue=%s", self._group, queue)

    async def _await_acknowledgement(self, queue: PolledQueue) -> None:
        """Wait at most `_PATIENCE_S` for the poll that acknowledges the queue's messages."""
        if not queue.is_unacknowledged or self._is_closed:
            return
        self._leaving.add(queue)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._acknowledged.wait()
        except TimeoutError:
            pass  # they are delivered again by the next owner
        finally:
            self._leaving.discard(queue)

    def _drop_ready(self, polled: PolledQueue) -> None:
        if polled in self._ready:
            self._ready.remove(polled)

    async def _stop(self, some: Collection[_Polled]) -> None:
        await asyncio.gather(*(one.turns.stop() for one in some if one.turns is not None))
        for one in some:
            one.reading.cancel()
        await asyncio.gather(*(one.reading for one in some), return_exceptions=True)


async def _run_after(delay_s: float, reader: QueueReader) -> None:
    """Read a queue after its handover delay, so that a previous owner can release it."""
    if delay_s:
        await asyncio.sleep(delay_s)
    await reader.run()
