"""States of the messages of one queue that is consumed in order; pure.

    waiting ──take──▶ taken ──finish──▶ finished ──commit──▶ done
       ▲                │                   │
       └────put_back────┴─────roll_back─────┘

Taken messages are being processed by the listener. Finished messages were processed but are not
committed yet; messages stay in this state only if the listener decides when to commit. Each state
holds a contiguous range of messages in offset order, so that a done message never follows one that
is not done: the committable offset is that of the first message that is not done.

Source: ProcessQueue.takeMessages, commit, rollback, makeMessageToConsumeAgain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from kourou.client.consuming.pulling.delivery import DeliverySource
from kourou.model.message import MessageExt


class QueueOrder:
    """The messages that a process queue holds, in order.

    Args:
        process_queue: holds them until they are done; its messages must be passed to `put`.
    """

    __slots__ = ("_finished", "_taken", "_waiting", "process_queue")

    def __init__(self, process_queue: DeliverySource) -> None:
        self.process_queue = process_queue
        self._waiting: deque[MessageExt] = deque()
        self._taken: list[MessageExt] = []
        self._finished: list[MessageExt] = []

    @property
    def is_waiting(self) -> bool:
        """Whether there is a message to take."""
        return bool(self._waiting) and not self.process_queue.is_dropped

    @property
    def taken(self) -> Sequence[MessageExt]:
        """Messages taken and neither finished, done nor put back."""
        return self._taken

    @property
    def finished(self) -> Sequence[MessageExt]:
        """Messages finished and neither done nor rolled back."""
        return self._finished

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add messages that were just added to the process queue; they wait."""
        waiting = self._waiting
        is_behind = (
            not waiting or not messages or messages[0].queue_offset > waiting[-1].queue_offset
        )
        waiting.extend(messages)
        if not is_behind:  # pulled again
            self._waiting = deque(sorted(waiting, key=_offset))

    def take(self, limit: int) -> list[MessageExt]:
        """Take the next messages, at most `limit`; none while earlier ones are still taken."""
        if self._taken or self.process_queue.is_dropped:
            return []
        waiting, holds = self._waiting, self.process_queue.holds
        self._taken = []
        while waiting and len(self._taken) < limit:
            message = waiting.popleft()
            if holds(message):  # a popped message may be visible again
                self._taken.append(message)
        return list(self._taken)

    def finish(self, count: int | None = None) -> None:
        """Mark the first `count` taken messages as finished; None: all."""
        self._finished += self._taken[:count]
        self._taken = [] if count is None else self._taken[count:]

    def commit(self) -> int | None:
        """Mark all finished messages as done; return the committable offset.

        None if there were none, or the queue belongs to another member now.
        """
        done, self._finished = self._finished, []
        return self.process_queue.remove_all(done)

    def remove(self, message: MessageExt) -> None:
        """Remove a taken message that was done by other means, such as a dead letter."""
        self._taken = [one for one in self._taken if one is not message]

    def put_back(self, failed: Collection[MessageExt] | None = None) -> None:
        """Put taken messages back to waiting; None: all.

        With `failed`, the messages before the first of these are finished; the rest are put back.
        """
        taken = self._taken
        first = 0
        if failed is not None:
            ids = set(map(id, failed))
            first = next((at for at, one in enumerate(taken) if id(one) in ids), len(taken))
        self._finished += taken[:first]
        self._waiting.extendleft(reversed(taken[first:]))
        self._taken = []

    def put_back_after(self, count: int) -> None:
        """Put the taken messages back to waiting, except the first `count`."""
        self._waiting.extendleft(reversed(self._taken[count:]))
        del self._taken[count:]

    def roll_back(self) -> None:
        """Put all taken and finished messages back to waiting."""
        self._waiting.extendleft(reversed([*self._finished, *self._taken]))
        self._finished = []
        self._taken = []


def _offset(message: MessageExt) -> int:
    return message.queue_offset
