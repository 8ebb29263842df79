"""Retry topic and dead-letter topic of a consumer group.

Source: TopicConfigManager.createTopicInSendMessageBackMethod, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final, Protocol

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TOPIC_UNIT_SUB, TopicConfig, dlq_topic, retry_topic

DLQ_QUEUES: Final = 1
"""Queues of a dead-letter topic."""


class TopicTable(Protocol):
    """The topics of the broker; see `kourou.broker.topics.Topics`."""

    def get(self, name: str) -> TopicConfig | None: ...

    def put(self, topic: TopicConfig, host: str | None = None) -> object: ...


def ensure_retry_topic(
    topics: TopicTable,
    group: SubscriptionGroup,
    host: str | None = None,
    *,
    unit_mode: bool = False,
) -> TopicConfig:
    """Return the group's retry topic; create it if necessary. `retry_queue_nums` is above 0.

    `host`: host of the client that causes it.
    """
    flag = TOPIC_UNIT_SUB if unit_mode else 0
    return _ensure_topic(topics, retry_topic(group.group_name), group.retry_queue_nums, flag, host)


def find_dlq_topic(topics: TopicTable, group: SubscriptionGroup) -> TopicConfig:
    """Return the group's dead-letter topic, or the config to create it with; creates nothing."""
    return _find_topic(topics, dlq_topic(group.group_name), DLQ_QUEUES, 0)


def ensure_dlq_topic(topics: TopicTable, group: SubscriptionGroup) -> TopicConfig:
    """Return the group's dead-letter topic; create it if necessary."""
    return _ensure_topic(topics, dlq_topic(group.group_name), DLQ_QUEUES, 0)


def _find_topic(topics: TopicTable, name: str, queue_nums: int, topic_sys_flag: int) -> TopicConfig:
    # The default permission: readable and writable, but not a template for other topics.
    return topics.get(name) or TopicConfig(
        name, queue_nums, queue_nums, topic_sys_flag=topic_sys_flag
    )


def _ensure_topic(
    topics: TopicTable, name: str, queue_nums: int, topic_sys_flag: int, host: str | None = None
) -> TopicConfig:
    config = _find_topic(topics, name, queue_nums, topic_sys_flag)
    if topics.get(name) is None:
        topics.put(config, host)
    return config
