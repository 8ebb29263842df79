"""The order in which one queue is consumed: what comes next, what was given, what is done; pure.

    waiting ──take──▶ taken ──finish──▶ finished ──commit──▶ done
       ▲                │                   │
       └────put_back────┴─────roll_back─────┘

Taken is what the listener has in its hands; finished is what it returned from and did not commit
yet, which there is only where the listener decides when to commit. All three are runs of
neighbouring messages in the order of their offsets, so that what is done never lies behind what is
not: the offset that may be committed is that of the first message that is not done.

Source: ProcessQueue.takeMessages, commit, rollback, makeMessageToConsumeAgain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.message import MessageExt


class QueueOrder:
    """The messages that a process queue holds, in order.

    Args:
        process_queue: holds them until they are done; must not be given messages but by `put`.
    """

    __slots__ = ("_finished", "_taken", "_waiting", "process_queue")

    def __init__(self, process_queue: ProcessQueue) -> None:
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
        """What was taken and is neither finished, done nor put back."""
        return self._taken

    @property
    def finished(self) -> Sequence[MessageExt]:
        """What was finished and is neither done nor rolled back."""
        return self._finished

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Have messages wait that the process queue has just begun to hold."""
        waiting = self._waiting
        is_behind = (
            not waiting or not messages or messages[0].queue_offset > waiting[-1].queue_offset
        )
        waiting.extend(messages)
        if not is_behind:  # pulled once more
            self._waiting = deque(sorted(waiting, key=_offset))

    def take(self, limit: int) -> list[MessageExt]:
        """Take the next messages, at most `limit`; none while what was taken before is out."""
        if self._taken or self.process_queue.is_dropped:
            return []
        waiting = self._waiting
        self._taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        return list(self._taken)

    def finish(self, count: int | None = None) -> None:
        """Note that the listener returned from the first `count` that are taken; None: from all."""
        self._finished += self._taken[:count]
        self._taken = [] if count is None else self._taken[count:]

    def commit(self) -> int | None:
        """Note that all that is finished is done; return the offset that may be committed now.

        None if there was nothing, or the queue is another member's now.
        """
        done, self._finished = self._finished, []
        return self.process_queue.remove_all(done)

    def forget(self, message: MessageExt) -> None:
        """Note that a message that was taken is done by other ways, such as a dead letter."""
        self._taken = [one for one in self._taken if one is not message]

    def put_back(self, failed: Collection[MessageExt] | None = None) -> None:
        """Have what was taken taken again; None: all of it.

        With `failed`, what comes before the first of these is finished; the rest is taken again.
        """
        taken = self._taken
        first = 0
        if failed is not None:
            ids = set(map(id, failed))
            first = next((at for at, one in enumerate(taken) if id(one) in ids), len(taken))
        self._finished += taken[:first]
        self._waiting.extendleft(reversed(taken[first:]))
        self._taken = []

    def put_back_behind(self, count: int) -> None:
        """Have what was taken taken again, but for the first `count`."""
        self._waiting.extendleft(reversed(self._taken[count:]))
        del self._taken[count:]

    def roll_back(self) -> None:
        """Have all taken again that was taken or finished and is not done."""
        self._waiting.extendleft(reversed([*self._finished, *self._taken]))
        self._finished = []
        self._taken = []


def _offset(message: MessageExt) -> int:
    return message.queue_offset
