"""Offset stores of a group: committed offsets at brokers and newer ones in memory.

Source: RemoteBrokerOffsetStore.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kourou.client import calls_consume
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline
from kourou.errors import KourouError, RemoteError
from kourou.model.queue import MessageQueue

log = logging.getLogger(__name__)


class Offsets(Protocol):
    """Offset store for the queues that a member holds: persisted offsets, newer ones in memory.

    Attributes:
        is_remote: brokers store the offsets, so that pulls may commit them too.
    """

    is_remote: bool

    async def open(self) -> None:
        """Make the store ready for use.

        Raises:
            UsageError: the persisted offsets cannot be used.
        """

    def close(self) -> None:
        """Release the store for other consumers. Nothing is written."""

    async def fetch(
        self, queue: MessageQueue, *, zero_if_new: bool = False
    ) -> calls_consume.CommittedOffset:
        """Return the persisted queue offset; None if the group has none for the queue.

        With `zero_if_new`, return 0 instead of None if the queue still has its first messages in
        the broker's memory or has none yet.

        Raises:
            TransportError, RemoteError: the broker did not answer, so the offset is unknown.
        """

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return the `TOPIC_BEGIN_FIELD` of the topic that this member's offsets belong to.

        None: unknown.
        """

    def set_topic_begin(self, queue: MessageQueue, begin: int | None) -> None:
        """Set it, as the member is about to continue at an offset of this topic.

        An offset in memory of another topic is dropped. None changes nothing.
        """

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory; None before the first update."""

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Record that all messages below `offset` are done; a lower offset is ignored."""

    def overwrite(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, also to a lower one: the queue's bounds moved, or it was reset."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset in memory: this member no longer holds the queue."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Persist the offsets of these queues. A failure is logged and not raised."""


class OffsetsInMemory:
    """The offsets in memory, for both kinds of stores."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    async def open(self) -> None:
        """Do nothing: the store is ready."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return None: no broker was asked."""
        del queue
        return None

    def set_topic_begin(self, queue: MessageQueue, begin: int | None) -> None:
        """Do nothing."""

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory; None before the first update."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Record that all messages below `offset` are done; a lower offset is ignored."""
        current = self._offsets.get(queue)
        if current is None or offset > current:
            self._offsets[queue] = offset

    def overwrite(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, also to a lower one: the queue's bounds moved, or it was reset."""
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset in memory: this member no longer holds the queue."""
        self._offsets.pop(queue, None)


class RemoteOffsets(OffsetsInMemory):
    """Offsets of the queues that this member holds, committed to brokers.

    Updates stay in memory until `persist`. After a crash in between, messages are delivered again.
    """

    is_remote = True

    def __init__(self, instance: ClientInstance, group: str, timeout_ms: int) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._timeout_ms = timeout_ms
        # Names of brokers that the last commit did not reach; queues whose last commit was refused.
        self._failing: set[str | MessageQueue] = set()
        self._topic_begins: dict[MessageQueue, int] = {}

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return the `TOPIC_BEGIN_FIELD` of the topic that this member's offsets belong to."""
        return self._topic_begins.get(queue)

    def set_topic_begin(self, queue: MessageQueue, begin: int | None) -> None:
        """Set it; see `Offsets.set_topic_begin`.

        A fetch alone does not set it: an offset of a deleted topic would be committed for the topic
        that was created again, whose messages before this offset the group would skip.
        """
        if begin is None:
            return
        if self._topic_begins.get(queue, begin) != begin:
            self._offsets.pop(queue, None)
        self._topic_begins[queue] = begin

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._topic_begins.pop(queue, None)
        self._failing.discard(queue)

    async def fetch(
        self, queue: MessageQueue, *, zero_if_new: bool = False
    ) -> calls_consume.CommittedOffset:
        """Return the queue offset committed at the broker; None if the group has none.

        With `zero_if_new`, return 0 instead of None if the queue still has its first messages in
        the broker's memory or has none yet.

        Raises:
            TransportError, RemoteError: the broker did not answer, so the offset is unknown.
        """

        async def call(address: str, deadline: Deadline) -> calls_consume.CommittedOffset:
            return await calls_consume.query_offset(
                self._instance.pool,
                address,
                self._group,
                queue,
                zero_if_new=zero_if_new,
                timeout_s=deadline.remaining_s(),
            )

        return await self._instance.call_broker(queue, self._timeout_ms, call)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Commit the offsets of these queues to their brokers.

        Unchanged offsets are committed again: a broker that crashed may have lost them. A failure
        is not raised, but logged as a warning once until the broker accepts a commit. A later call
        commits the offsets; after a crash before that, messages are delivered again.
        """
        await commit_each(queues, self._persist)

    async def _persist(self, queue: MessageQueue) -> None:
        offset, topic_begin = self._offsets.get(queue), self._topic_begins.get(queue)
        if offset is None:
            return
        try:
            address = await self._instance.routes.address(
                queue.topic, queue.broker_name, self._timeout_ms / 1000
            )
            await calls_consume.update_offset(
                self._instance.pool,
                address,
                self._group,
                queue,
                offset,
                timeout_s=self._timeout_ms / 1000,
                topic_begin=topic_begin,
            )
        except KourouError as error:
            self._instance.routes.on_failure(queue.topic, error)
            failing = queue if isinstance(error, RemoteError) else queue.broker_name
            level = logging.DEBUG if failing in self._failing else logging.WARNING
            self._failing.add(failing)
            log.log(
                level, "offset.not_persisted queue=%s offset=%d reason=%s", queue, offset, error
            )
        else:
            self._failing -= {queue, queue.broker_name}


async def commit_each(
    queues: Iterable[MessageQueue], commit: Callable[[MessageQueue], Awaitable[None]]
) -> None:
    """Commit queues concurrently, after the first queue of each topic and broker.

    If a Java broker receives the first commits of a group in a topic concurrently, it keeps one and
    loses the others (ConsumerOffsetManager.commitOffset creates a table for each).

    Raises:
        Exception: as raised by `commit`; other queues may be committed then.
    """
    firsts: dict[tuple[str, str], MessageQueue] = {}
    rest = [
        queue
        for queue in queues
        if firsts.setdefault((queue.topic, queue.broker_name), queue) is not queue
    ]
    await asyncio.gather(*map(commit, firsts.values()))
    await asyncio.gather(*map(commit, rest))
