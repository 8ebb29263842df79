"""TopicQueues: number of queues and permission of each topic on each broker.

    topic -> broker name -> QueueData

A second index, from the broker name to its topics, lets an operation on one broker cost time in
proportion to the topics of that broker only. Pure.

Source: RouteInfoManager.java (topicQueueTable), apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kourou.model.route import QueueData
from kourou.model.topic import PERM_READ, PERM_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUB

_NO_QUEUES: Final[dict[str, QueueData]] = {}


class TopicQueues:
    """All topics of all brokers."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[str, QueueData]] = {}
        self._by_broker: dict[str, set[str]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Return the number of (topic, broker name) pairs."""
        return self._size

    def __contains__(self, topic: object) -> bool:
        return topic in self._by_topic

    def of_topic(self, topic: str) -> Mapping[str, QueueData]:
        """Return a topic's queues by broker name; empty for an unknown topic."""
        return self._by_topic.get(topic, _NO_QUEUES)

    def of_broker(self, broker_name: str) -> Collection[str]:
        """Return the names of a broker's topics."""
        return self._by_broker.get(broker_name, ())

    def put(self, topic: str, data: QueueData) -> None:
        """Add or replace the entry of `data`'s broker for the topic."""
        queues = self._by_topic.setdefault(topic, {})
        if data.broker_name not in queues:
            self._size += 1
            self._by_broker.setdefault(data.broker_name, set()).add(topic)
        queues[data.broker_name] = data

    def remove(self, topic: str, broker_name: str) -> None:
        """Remove the broker's entry for the topic; ignore an unknown one."""
        queues = self._by_topic.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self._size -= 1
        if not queues:
            del self._by_topic[topic]
        topics = self._by_broker[broker_name]
        topics.discard(topic)
        if not topics:
            del self._by_broker[broker_name]

    def remove_broker(self, broker_name: str) -> None:
        """Remove all entries of the broker."""
        for topic in list(self.of_broker(broker_name)):
            self.remove(topic, broker_name)

    def wipe_write(self, broker_name: str) -> int:
        """Remove the write permission of all topics of the broker; return their number."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write(self, broker_name: str) -> int:
        """Set the permission of all topics of the broker to read and write; return their number.

        As in Java, other permission bits are lost until the broker's next change.
        """
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._by_topic)

    def topics_of(self, broker_names: Iterable[str]) -> list[str]:
        """Return the names of the topics that at least one of these brokers has, sorted."""
        return sorted({topic for name in broker_names for topic in self.of_broker(name)})

    def unit_topics(self) -> list[str]:
        """Return the topics that belong to a unit (of a deployment in several units), sorted."""
        return self._flagged(TOPIC_UNIT, TOPIC_UNIT)

    def unit_sub_topics(self) -> list[str]:
        """Return the topics that a consumer of a unit reads, sorted."""
        return self._flagged(TOPIC_UNIT_SUB, TOPIC_UNIT_SUB)

    def unit_sub_ununit_topics(self) -> list[str]:
        """Return the topics that a consumer of a unit reads and that belong to no unit, sorted."""
        return self._flagged(TOPIC_UNIT | TOPIC_UNIT_SUB, TOPIC_UNIT_SUB)

    def _flagged(self, mask: int, wanted: int) -> list[str]:
        """Return the topics whose flags match; as in Java, the first broker's entry decides."""
        return sorted(
            topic
            for topic, queues in self._by_topic.items()
            if next(iter(queues.values())).topic_sys_flag & mask == wanted
        )

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self.of_broker(broker_name)
        for topic in topics:
            queues = self._by_topic[topic]
            data = queues[broker_name]
            queues[broker_name] = replace(data, perm=change(data.perm))
        return len(topics)
