"""Which queue a message goes to."""

from __future__ import annotations

from kourou.errors import NoRouteError
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute, publish_queues


class RoundRobin:
    """Takes the queues of one topic in turn, from a random start.

    The start differs between producers, so that many short-lived ones do not all fill queue 0.
    """

    def __init__(self, topic: str, start: int) -> None:
        self._topic = topic
        self._next = start
        # What follows from a route, as long as it is the one: listing the queues takes a while.
        self._route: TopicRoute | None = None
        self._queues: list[MessageQueue] = []

    def choose(self, route: TopicRoute, avoid: str | None = None) -> MessageQueue:
        """Return the next queue whose broker is not `avoid`; any, if there is no other broker.

        Args:
            route: the topic's.
            avoid: name of the broker where the last try of this message failed.

        Raises:
            NoRouteError: no queue of the topic can be written.
        """
        if route is not self._route:
            self._route, self._queues = route, publish_queues(self._topic, route)
        if not self._queues:
            raise NoRouteError(f"topic {self._topic} has no queue that can be written")
        for _ in self._queues:
            queue = self._take()
            if queue.broker_name != avoid:
                return queue
        return self._take()

    def _take(self) -> MessageQueue:
        queue = self._queues[self._next % len(self._queues)]
        self._next += 1
        return queue
