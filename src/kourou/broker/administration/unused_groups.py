"""Forgets what clients made by naming it, and nobody has used since.

    a group         without settings of its own, members, offsets in any topic, and messages in its
                    retry topic, where groups are made on their first use: its next use makes it
                    again, and it begins as it would have begun. Its empty retry topic goes with it.
    offsets         of groups in topics that do not exist

Offsets in a topic that exists are kept for ever, as by RocketMQ, also those of a group that was
deleted without them: the group may come back, and has to go on where it was. What is unused is
forgotten after `unused_group_ms`, counted anew from each start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from kourou.broker.clients import Clients
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.groups import Groups
from kourou.broker.live_config import LiveConfig
from kourou.broker.topics import Topics
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig, is_system_group, retry_topic
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import MessageStore

UNUSED_CHECK_INTERVAL_MS: Final = 10 * 60_000
GROUPS_AT_ONCE: Final = 500
"""Groups that one check forgets: each is a change of the tables, and a log entry."""
TOPICS_AT_ONCE: Final = 20
"""Topics whose offsets one check forgets: each is a search through all offsets."""

_PART: Final = 1_000
"""Groups that are looked at in one turn of the loop."""


class UnusedGroups:
    """Looks for groups and offsets that nobody uses."""

    def __init__(
        self,
        config: LiveConfig,
        *,
        groups: Groups,
        topics: Topics,
        offsets: ConsumerOffsets,
        clients: Clients,
        store: MessageStore,
        on_topic_deleted: Callable[[TopicConfig], None],
    ) -> None:
        """Forget groups and offsets of these tables.

        Args:
            config: says after how long.
            groups: of all groups.
            topics: those that exist, retry topics among them.
            offsets: of all groups.
            clients: tell which groups have members.
            store: tells which retry topics have messages.
            on_topic_deleted: told of each retry topic that goes.
        """
        self._config = config
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._store = store
        self._on_topic_deleted = on_topic_deleted
        self._idle_since_ms: dict[str, int] = {}  # group
        self._missing_since_ms: dict[str, int] = {}  # topic

    async def check(self) -> None:
        """Note what is unused now, and forget what was so for long enough."""
        before_ms = steady_ms() - self._config.now.unused_group_ms
        names, with_offsets = iter(self._groups.names()), self._offsets.groups()
        idle: dict[str, int] = {}
        while part := list(islice(names, _PART)):
            for name in part:
                if self._is_unused(name, with_offsets):
                    idle[name] = self._idle_since_ms.get(name, steady_ms())
            await asyncio.sleep(0)
        self._idle_since_ms = idle
        self._forget_groups([name for name, since_ms in idle.items() if since_ms <= before_ms])
        self._forget_offsets(before_ms)

    def _is_unused(self, name: str, with_offsets: Collection[str]) -> bool:
        return (
            self._groups.auto_create
            and self._groups.get(name) == SubscriptionGroup(name)
            and not is_system_group(name)
            and not self._groups.is_any_forbidden(name)
            and self._clients.consumer_group(name) is None
            and name not in with_offsets
            and not self._has_retries(name)
        )

    def _has_retries(self, group: str) -> bool:
        topic = self._topics.get(retry_topic(group))
        queue_nums = 0 if topic is None else max(topic.read_queue_nums, topic.write_queue_nums)
        return any(
            self._store.max_offset(retry_topic(group), queue_id) for queue_id in range(queue_nums)
        )

    def _forget_groups(self, names: Collection[str]) -> None:
        """Forget the first of these that are unused still."""
        with_offsets = self._offsets.groups() if names else ()
        gone = set()
        for name in islice(names, GROUPS_AT_ONCE):
            if not self._is_unused(name, with_offsets):
                continue
            gone.add(name)
            del self._idle_since_ms[name]
            self._groups.delete(name)
            topic = self._topics.get(retry_topic(name))
            if topic is not None:
                self._topics.delete(topic.name)
                self._on_topic_deleted(topic)
        if gone:
            self._offsets.remove_groups(gone)  # where they pulled

    def _forget_offsets(self, before_ms: int) -> None:
        missing = self._offsets.topics() - self._topics.by_name.keys()
        self._missing_since_ms = {
            topic: self._missing_since_ms.get(topic, steady_ms()) for topic in missing
        }
        due = [topic for topic, since_ms in self._missing_since_ms.items() if since_ms <= before_ms]
        for topic in due[:TOPICS_AT_ONCE]:
            del self._missing_since_ms[topic]
            self._offsets.remove_topic(topic)
