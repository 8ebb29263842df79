"""Removes groups and offsets that clients created by use and that have been unused for a long time.

    groups    without settings of their own, members, offsets in any topic, and messages in their
              retry topic; only while the first use of a group creates it. The next use creates the
              group again, with the same result as if it had been kept. Its empty retry topic is
              removed with it.
    offsets   of groups in topics that do not exist

Offsets in an existing topic are kept for ever, as in RocketMQ, even those of a group that was
deleted without its offsets: the group may return, and must continue at its offsets. Removal follows
`unused_group_ms` after an entry became unused; each start of the broker begins the time again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig, is_system_group, retry_topic
from kourou.remoting.steady_time import steady_ms

UNUSED_CHECK_INTERVAL_MS: Final = 10 * 60_000
GROUPS_AT_ONCE: Final = 500
"""Most groups that one check removes. Each is a change of the tables and a log entry."""
TOPICS_AT_ONCE: Final = 20
"""Most topics whose offsets one check removes. Each is a search through all offsets."""

_PART: Final = 1_000
"""Groups that are checked before other tasks run."""


class UnusedGroups:
    """Finds and removes unused groups and offsets."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        on_topic_deleted: Callable[[TopicConfig], None],
    ) -> None:
        """Create the check.

        Args:
            context: the broker's state and services.
            offsets: the table from which offsets are removed.
            on_topic_deleted: called with each retry topic that was removed.
        """
        self._config = context.live_config
        self._groups = context.groups
        self._topics = context.topics
        self._offsets = offsets
        self._clients = context.clients
        self._reader = context.store.reader
        self._on_topic_deleted = on_topic_deleted
        self._idle_since_ms: dict[str, int] = {}  # group
        self._missing_since_ms: dict[str, int] = {}  # topic

    async def check(self) -> None:
        """Record what is unused now, and remove what has been unused for `unused_group_ms`."""
        before_ms = steady_ms() - self._config.current.unused_group_ms
        names, with_offsets = iter(self._groups.names()), self._offsets.groups()
        idle: dict[str, int] = {}
        while part := list(islice(names, _PART)):
            for name in part:
                if self._is_unused(name, with_offsets):
                    idle[name] = self._idle_since_ms.get(name, steady_ms())
            await asyncio.sleep(0)
        self._idle_since_ms = idle
        self._remove_groups([name for name, since_ms in idle.items() if since_ms <= before_ms])
        self._remove_offsets(before_ms)

    def _is_unused(self, name: str, with_offsets: Collection[str]) -> bool:
        return (
            self._groups.auto_create
            and self._groups.get(name) == SubscriptionGroup(name)
            and not is_system_group(name)
            and not self._groups.has_forbidden_topics(name)
            and self._clients.consumer_group(name) is None
            and name not in with_offsets
            and not self._has_retries(name)
        )

    def _has_retries(self, group: str) -> bool:
        topic = self._topics.get(retry_topic(group))
        queue_nums = 0 if topic is None else max(topic.read_queue_nums, topic.write_queue_nums)
        return any(
            self._reader.max_offset(retry_topic(group), queue_id) for queue_id in range(queue_nums)
        )

    def _remove_groups(self, names: Collection[str]) -> None:
        """Remove those of the first `GROUPS_AT_ONCE` groups that are still unused."""
        with_offsets = self._offsets.groups() if names else ()
        removed = set()
        for name in islice(names, GROUPS_AT_ONCE):
            if not self._is_unused(name, with_offsets):
                continue
            removed.add(name)
            del self._idle_since_ms[name]
            self._groups.delete(name)
            topic = self._topics.get(retry_topic(name))
            if topic is not None:
                self._topics.delete(topic.name)
                self._on_topic_deleted(topic)
        if removed:
            self._offsets.remove_groups(removed)  # they committed none, but may have pulled offsets

    def _remove_offsets(self, before_ms: int) -> None:
        missing = self._offsets.topics() - self._topics.by_name.keys()
        self._missing_since_ms = {
            topic: self._missing_since_ms.get(topic, steady_ms()) for topic in missing
        }
        due = [topic for topic, since_ms in self._missing_since_ms.items() if since_ms <= before_ms]
        for topic in due[:TOPICS_AT_ONCE]:
            del self._missing_since_ms[topic]
            self._offsets.remove_topic(topic)
