"""Handover delay of a queue that another member may have held before this member starts it; pure.

The previous owner learns of the change at about the same time, and uses the delay to finish and
commit its deliveries. If the queue is assigned to another member in between, the delay starts over:
that member must release the queue, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kourou.model.queue import MessageQueue

_VALID_S: Final = 10.0
"""A delay that ended more than this many seconds ago is not valid: passes in between have failed,
so the queue may have been assigned to another member meanwhile."""


class HandoverDelays:
    """Handover delays of the queues that are assigned but not started.

    Args:
        delay_s: the delay of each queue in seconds.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._since_s: dict[MessageQueue, float] = {}

    def __len__(self) -> int:
        """Return the number of delayed queues."""
        return len(self._since_s)

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Cancel the delays of the topic's queues that are not in `queues`."""
        for queue in [one for one in self._since_s if one.topic == topic and one not in queues]:
            del self._since_s[queue]

    def remaining_s(self, queue: MessageQueue, now_s: float) -> float:
        """Return the seconds left of the queue's delay; start the delay if there is none.

        At 0 the delay is over and removed: the caller starts the queue.
        """
        since_s = self._since_s.get(queue)
        if since_s is None or now_s - since_s >= self._delay_s + _VALID_S:
            since_s = self._since_s[queue] = now_s
        remaining_s = since_s + self._delay_s - now_s
        if remaining_s <= 0:
            del self._since_s[queue]
        return max(0.0, remaining_s)
