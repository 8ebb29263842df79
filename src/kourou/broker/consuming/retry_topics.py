"""The topics that the broker keeps for a consumer group: what it gave back, and its dead letters.

Source: TopicConfigManager.createTopicInSendMessageBackMethod, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TOPIC_UNIT_SUB, TopicConfig, dlq_topic, retry_topic

DLQ_QUEUES: Final = 1
"""Queues of a dead-letter topic."""


class TopicTable(Protocol):
    """The topics that the broker knows, see `kourou.broker.topics.Topics`."""

    def get(self, name: str) -> TopicConfig | None: ...

    def put(self, topic: TopicConfig, host: str | None = None) -> object: ...


class ToldTopics(TopicTable, Protocol):
    """The same, for who must know that name servers know a topic."""

    @property
    def is_told(self) -> Callable[[], bool]: ...

    @property
    def told(self) -> Callable[[], Awaitable[None]]: ...


class SavedTopics(TopicTable, Protocol):
    """The same, for who must know that a topic outlives a crash."""

    def is_saved(self, name: str) -> bool: ...

    async def persist(self) -> None: ...


def ensure_retry_topic(
    topics: TopicTable,
    group: SubscriptionGroup,
    host: str | None = None,
    *,
    unit_mode: bool = False,
) -> TopicConfig:
    """Return the group's retry topic, made now if there is none. `retry_queue_nums` is above 0.

    `host`: that of the client which makes it.
    """
    flag = TOPIC_UNIT_SUB if unit_mode else 0
    return _ensure(topics, retry_topic(group.group_name), group.retry_queue_nums, flag, host)


def find_dlq_topic(topics: TopicTable, group: SubscriptionGroup) -> TopicConfig:
    """Return the group's dead-letter topic, or the one to be made; nothing is made here."""
    return _find(topics, dlq_topic(group.group_name), DLQ_QUEUES, 0)


def ensure_dlq_topic(topics: TopicTable, group: SubscriptionGroup) -> TopicConfig:
    """Return the group's dead-letter topic, made now if there is none."""
    return _ensure(topics, dlq_topic(group.group_name), DLQ_QUEUES, 0)


def _find(topics: TopicTable, name: str, queue_nums: int, topic_sys_flag: int) -> TopicConfig:
    # Readable and writable, but never a pattern for other topics: the default permission.
    return topics.get(name) or TopicConfig(
        name, queue_nums, queue_nums, topic_sys_flag=topic_sys_flag
    )


def _ensure(
    topics: TopicTable, name: str, queue_nums: int, topic_sys_flag: int, host: str | None = None
) -> TopicConfig:
    config = _find(topics, name, queue_nums, topic_sys_flag)
    if topics.get(name) is None:
        topics.put(config, host)
    return config
