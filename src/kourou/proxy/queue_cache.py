"""Cache of the queues that a route lists: a send needs them, and routes rarely change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute

ListQueues = Callable[[str, TopicRoute], Sequence[MessageQueue]]


class QueueCache:
    """Queues of topics, listed once for each route object.

    Args:
        list_queues: lists the queues of a topic and its route.
        topics_max: number of topics; the oldest is evicted first.
    """

    def __init__(self, list_queues: ListQueues, topics_max: int) -> None:
        self._list_queues = list_queues
        self._topics_max = topics_max
        self._by_topic: dict[str, tuple[TopicRoute, Sequence[MessageQueue]]] = {}

    def __len__(self) -> int:
        """Return the number of cached topics."""
        return len(self._by_topic)

    def queues(self, topic: str, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues of a route, which is the same object while it has not changed."""
        cached = self._by_topic.get(topic)
        if cached is not None and cached[0] is route:
            return cached[1]
        queues = self._list_queues(topic, route)
        self._by_topic[topic] = route, queues
        while len(self._by_topic) > self._topics_max:
            del self._by_topic[next(iter(self._by_topic))]
        return queues
