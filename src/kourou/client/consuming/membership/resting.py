"""How long a queue that may have been another member's rests before this member starts it; pure.

Whoever had the queue learns of the change at about the same time, and uses the rest to end and
commit what it was doing. A rest that is broken off, because the queue was given to another member
again in between, begins anew: that one has to let go of it, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kourou.model.queue import MessageQueue

_VALID_S: Final = 10.0
"""A queue that was wanted so much longer ago than it had to rest was not wanted all the time: the
passes between failed, and nobody knows."""


class Rests:
    """Since when the queues that are wanted and not started rest.

    Args:
        rest_s: for how long each does, in seconds.
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._since_s: dict[MessageQueue, float] = {}

    def __len__(self) -> int:
        """Return how many queues rest."""
        return len(self._since_s)

    def note_wanted(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Break off the rests of the topic's queues that are not among those wanted now."""
        for queue in [one for one in self._since_s if one.topic == topic and one not in queues]:
            del self._since_s[queue]

    def left_s(self, queue: MessageQueue, now_s: float) -> float:
        """Return how long a queue that is wanted has to rest still, in seconds.

        With 0 its rest is over, and forgotten: the queue is started.
        """
        since_s = self._since_s.get(queue)
        if since_s is None or now_s - since_s >= self._rest_s + _VALID_S:
            since_s = self._since_s[queue] = now_s
        left_s = since_s + self._rest_s - now_s
        if left_s <= 0:
            del self._since_s[queue]
        return max(0.0, left_s)
