"""Offsets of a group that its brokers keep, and the newer ones that this member has in memory.

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
    """Offsets of the queues that a member holds: kept somewhere, and newer ones in memory.

    Attributes:
        is_remote: brokers keep them, so that pulls may commit on the way.
    """

    is_remote: bool

    async def open(self) -> None:
        """Make ready for use.

        Raises:
            UsageError: what is kept cannot be used.
        """

    def close(self) -> None:
        """Let others use what is kept. Nothing is written."""

    async def fetch(self, queue: MessageQueue, *, zero_if_new: bool = False) -> int | None:
        """Return the queue offset that is kept; None if the group is new to the queue.

        With `zero_if_new`, 0 in place of None for a queue that is young and whole.

        Raises:
            TransportError, RemoteError: a broker did not say, which is not the same as None.
        """

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return which topic the offsets are of, see `TOPIC_BEGIN_FIELD`; None if not known."""

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory; None before the first update."""

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Remember that everything below `offset` is done; never goes back."""

    def overwrite(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, back too: the queue's bounds have moved, or somebody wants it so."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is in memory: this member does not hold the queue any more."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Have the offsets of these queues kept. A failure is logged, and not raised."""


class OffsetsInMemory:
    """What both kinds of offsets have in memory."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    async def open(self) -> None:
        """Make ready for use; nothing is to be done here."""

    def close(self) -> None:
        """Let others use what is kept; nothing is to be done here."""

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return which topic the offsets are of; None: no broker was asked."""
        del queue
        return None

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory; None before the first update."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Remember that everything below `offset` is done; never goes back."""
        known = self._offsets.get(queue)
        if known is None or offset > known:
            self._offsets[queue] = offset

    def overwrite(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, back too: the queue's bounds have moved, or somebody wants it so."""
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is in memory: this member does not hold the queue any more."""
        self._offsets.pop(queue, None)


class RemoteOffsets(OffsetsInMemory):
    """Committed offsets of the queues that this member holds.

    What is updated here is in memory until `persist`. A crash in between repeats deliveries.
    """

    is_remote = True

    def __init__(self, instance: ClientInstance, group: str, timeout_ms: int) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._timeout_ms = timeout_ms
        # Brokers that the last commit did not reach, and queues whose last commit was refused.
        self._failing: set[str | MessageQueue] = set()
        self._topic_begins: dict[MessageQueue, int] = {}

    def topic_begin(self, queue: MessageQueue) -> int | None:
        """Return which topic was meant when the broker told where the group is."""
        return self._topic_begins.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._topic_begins.pop(queue, None)
        self._failing.discard(queue)

    async def fetch(self, queue: MessageQueue, *, zero_if_new: bool = False) -> int | None:
        """Return the queue offset that the broker has; None if the group is new to the queue.

        With `zero_if_new`, 0 in place of None for a queue that is young and whole.

        Raises:
            TransportError, RemoteError: the broker did not say, which is not the same as None.
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

        committed = await self._instance.call_broker(queue, self._timeout_ms, call)
        if committed.topic_begin is not None:
            self._topic_begins[queue] = committed.topic_begin
        return committed.offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the brokers the offsets of these queues.

        Offsets that did not change are told again: a broker that crashed may have lost them. A
        failure is not raised, but logged once until the broker takes it again: the next time heals
        it, or deliveries are repeated.
        """
        await commit_each(queues, self._persist)

    async def _persist(self, queue: MessageQueue) -> None:
        offset = self._offsets.get(queue)
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
                topic_begin=self._topic_begins.get(queue),
            )
        except KourouError as error:
            if error.refresh_route:
                self._instance.routes.refresh_soon(queue.topic)
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
    """Commit queues at the same time, but for the first of each topic on a broker: alone before.

    A Java broker that gets the first commits of a group in a topic at once keeps one of them and
    loses the others (ConsumerOffsetManager.commitOffset makes a table for each).

    Raises:
        Exception: what `commit` raises; others may be committed then.
    """
    firsts: dict[tuple[str, str], MessageQueue] = {}
    rest = [
        queue
        for queue in queues
        if firsts.setdefault((queue.topic, queue.broker_name), queue) is not queue
    ]
    await asyncio.gather(*map(commit, firsts.values()))
    await asyncio.gather(*map(commit, rest))
