"""To which queue a message goes; pure.

Source: TopicPublishInfo.selectOneMessageQueue.
"""

from __future__ import annotations

from collections.abc import Sequence

from kourou.model.queue import MessageQueue


class RoundRobin:
    """Takes the queues of each topic in turn, from a random start.

    The start differs between producers, so that many short-lived ones do not all fill queue 0.
    """

    def __init__(self, start: int) -> None:
        self._next = start

    def choose(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
        """Return the next queue whose broker is not `avoid`; any, if there is no other broker.

        Args:
            queues: at least one, in the order of the route.
            avoid: name of the broker where the last try of this message failed.
        """
        for _ in queues:
            queue = self._take(queues)
            if queue.broker_name != avoid:
                return queue
        return self._take(queues)

    def _take(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue
