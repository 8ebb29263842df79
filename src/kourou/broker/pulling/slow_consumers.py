"""Detection of groups that read far behind the end of the log; they can be stopped.

Old messages must be read from disk, which slows down all other clients. With
`disable_consume_if_consumer_read_slowly`, a group with live members is stopped if more than
`consumer_fallbehind_threshold_bytes` of the log follow its position in any of its queues. Its
`consume_enable` is then false, so that pulls of its members are refused until an administrator
changes it (`kourou group update GROUP consume_enable=true`).

Java measures the distance at each pull. Here a periodic check derives it from the offsets of the
group. That costs pulls nothing, and detects members that no longer pull.

Source: BrokerController.protectBroker, SubscriptionGroupManager.disableConsume.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final, Protocol

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.model.topic import is_system_group
from kourou.store.formats import QueueEntry

log = logging.getLogger(__name__)

SLOW_CHECK_INTERVAL_MS: Final = 180_000
"""Interval of the check; the same as in Java."""


class LogDistances(Protocol):
    """The parts of `kourou.store.reader.StoreReader` that are used here."""

    @property
    def min_position(self) -> int: ...

    @property
    def visible_position(self) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def entry(self, topic: str, queue_id: int, offset: int) -> QueueEntry | None: ...


class SlowConsumers:
    """Measures how far groups are behind the end of the log.

    Args:
        config: whether groups are stopped, and from what distance on.
        groups: receive the change.
        clients: the connected members.
        offsets: the positions of groups.
        store: gives positions in the log.
        offload: runs reads of queues off the event loop.
    """

    def __init__(
        self, context: BrokerContext, offsets: ConsumerOffsets, store: LogDistances
    ) -> None:
        self._config = context.live_config
        self._groups = context.groups
        self._clients = context.clients
        self._offsets = offsets
        self._store = store
        self._offload = context.offload

    async def check(self) -> None:
        """Stop the groups that are too far behind, durably; no effect if the option is off.

        Raises:
            OSError: a group is stopped, but the change is not durable.
        """
        if not self._config.current.disable_consume_if_consumer_read_slowly:
            return
        for name in [live.name for live in self._clients.consumer_groups()]:
            group = self._groups.get(name)
            if group is None or not group.consume_enable or is_system_group(name):
                continue
            behind_bytes = await self.behind_bytes(name)
            limit_bytes = self._config.current.consumer_fallbehind_threshold_bytes
            if behind_bytes > limit_bytes:
                log.warning(
                    "group.stopped name=%s behind_bytes=%d limit_bytes=%d",
                    name, behind_bytes, limit_bytes,
                )  # fmt: skip
                self._groups.put(replace(group, consume_enable=False))
        await self._groups.persist()

    async def behind_bytes(self, group: str) -> int:
        """Return the bytes from the group's position to the log's end, for its slowest queue."""
        queues = [
            (topic, queue_id, max(committed, self._offsets.pulled(group, topic, queue_id) or 0))
            for topic in self._offsets.topics_of(group)
            for queue_id, committed in self._offsets.of_topic(group, topic).items()
        ]
        furthest = 0
        for queue in queues:
            furthest = max(furthest, await self._offload(self._distance, *queue))
            await asyncio.sleep(0)
        return furthest

    def _distance(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the bytes from a queue's entry to the end of the log; 0 at the queue's end."""
        store = self._store
        if offset >= store.max_offset(topic, queue_id):
            return 0
        entry = store.entry(topic, queue_id, offset)
        # The record of a missing entry has expired, so all that is left of the log follows it.
        at = store.min_position if entry is None else entry.physical_offset
        return max(0, store.visible_position - at)
