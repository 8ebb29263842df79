"""Settings of topics and groups, read from the tables of the broker in this process."""

from __future__ import annotations

from typing import Final

from kourou.broker.groups import Groups
from kourou.broker.topics import Topics
from kourou.model.group import SubscriptionGroup
from kourou.proxy.checks import UNSPECIFIED

TYPE_ATTRIBUTE: Final = "message.type"
_NORMAL: Final = "NORMAL"


class LocalMetadata:
    """A `Metadata` that is never out of date."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups

    async def topic_type(self, topic: str) -> str:
        return self.known_topic_type(topic)

    def known_topic_type(self, topic: str) -> str:
        found = self._topics.get(topic)
        if found is None:
            return UNSPECIFIED
        return found.attributes.get(TYPE_ATTRIBUTE, _NORMAL).upper()

    async def group(self, name: str) -> SubscriptionGroup | None:
        return self._groups.find(name)
