"""Young queues, in which a group without an offset begins at the first message."""

from __future__ import annotations

from kourou.broker.context import BrokerContext
from kourou.model.topic import TopicConfig


class YoungQueues:
    """The queues of one broker that are most likely as old as a group that is new to them."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._store = context.store.reader
        self._resident_bytes = context.config.store.resident_bytes

    def contains(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue's first message is in memory, or has not arrived yet.

        An empty queue counts too, so that the answer does not depend on whether the first message
        arrives before or after the query. A client without an offset would request the end of the
        queue next, and skip messages that arrive in between.
        """
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        if not self._store.max_offset(topic, queue_id):
            return self._has_queue(topic, queue_id)
        if not self._resident_bytes:
            return True
        first = self._store.entry_if_resident(topic, queue_id, 0)
        if first is None:
            return False  # the record is not in memory either, and the loop must not block
        return self._store.written_position - first.physical_offset <= self._resident_bytes

    def _has_queue(self, name: str, queue_id: int) -> bool:
        """Return whether the topic exists and has a queue with this id."""
        topic = self._topics.get(name)
        return topic is not None and 0 <= queue_id < queue_nums(topic)


def queue_nums(topic: TopicConfig) -> int:
    """Return the number of queues for which offsets may be committed.

    A topic with a reduced number of read queues still has the queues that are being drained.
    """
    return max(topic.read_queue_nums, topic.write_queue_nums)
