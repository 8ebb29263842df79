"""Settings of topics and groups, read from the tables of the broker in this process."""

from __future__ import annotations

from kourou.broker.groups import Groups
from kourou.broker.topics import Topics
from kourou.model.group import SubscriptionGroup
from kourou.proxy.checks import type_of_topic


class LocalMetadata:
    """A `Metadata` that is never out of date."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups

    async def topic_type(self, topic: str) -> str:
        return self.known_topic_type(topic)

    def known_topic_type(self, topic: str) -> str:
        return type_of_topic(self._topics.get(topic))

    async def group(self, name: str) -> SubscriptionGroup | None:
        return self.known_group(name)

    def known_group(self, name: str) -> SubscriptionGroup | None:
        return self._groups.find(name)
