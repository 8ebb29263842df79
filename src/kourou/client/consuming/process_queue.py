"""What a consumer holds of one queue, and the offset that may be committed; pure.

Messages of a queue are consumed in any order, but an offset is committed for a queue as a whole:
it says that everything below it is done. So the committable offset is the lowest one still held,
and a message that never ends holds back all commits behind it. A crash redelivers from there.

Source: ProcessQueue.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue


class ProcessQueue:
    """The messages of one queue that were pulled and are not done.

    Attributes:
        queue: the queue.
        is_dropped: the queue belongs to another member now: its messages must not be delivered,
            sent back or committed from here any more. Never set back.
        size_bytes: sum of the bodies held, as pulled.
        last_consumed_at_ms: when a listener last got a message; 0 if none did.
    """

    __slots__ = (
        "_end",
        "_highest",
        "_messages",
        "_order",
        "_started",
        "is_dropped",
        "last_consumed_at_ms",
        "queue",
        "size_bytes",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.is_dropped = False
        self.size_bytes = 0
        self.last_consumed_at_ms = 0
        self._messages: dict[int, MessageExt] = {}
        # Offsets, ascending; those no longer in _messages are skipped lazily.
        self._order: deque[int] = deque()
        self._started: dict[int, int] = {}
        self._highest = -1
        self._end: int | None = None

    def __len__(self) -> int:
        """Return how many messages are held."""
        return len(self._messages)

    @property
    def lowest(self) -> int | None:
        """The lowest queue offset held; None when empty."""
        return self._lowest() if self._messages else None

    @property
    def highest(self) -> int | None:
        """The highest queue offset held; None when empty."""
        return self._highest if self._messages else None

    @property
    def span(self) -> int:
        """Distance between the lowest and the highest offset held; 0 when empty."""
        return self._highest - self._lowest() if self._messages else 0

    def put(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """Hold `messages`; return those that were not held yet, in the order given."""
        held, order, highest = self._messages, self._order, self._highest
        added = []
        is_ascending = True
        for message in messages:
            offset = message.queue_offset
            if offset in held:
                continue
            held[offset] = message
            self.size_bytes += len(message.body)
            added.append(message)
            if offset > highest:
                order.append(offset)
                highest = offset
            else:
                is_ascending = False
        if added:
            self._highest = highest
            if not is_ascending:  # some are below what was held before: pulled once more
                self._order = deque(sorted(held))
            self.advance(highest + 1)
        return added

    def advance(self, offset: int) -> None:
        """Note that everything below the queue offset `offset` was pulled, or nobody wants it."""
        if self._end is None or offset > self._end:
            self._end = offset

    def holds(self, message: MessageExt) -> bool:
        """Return whether this very message is held: neither done nor given up."""
        return self._messages.get(message.queue_offset) is message

    def start(self, message: MessageExt, now_ms: int) -> bool:
        """Remember that a listener gets `message` at `now_ms`; False if it is not held any more."""
        offset = message.queue_offset
        if self._messages.get(offset) is not message:
            return False
        self._started[offset] = now_ms
        self.last_consumed_at_ms = now_ms
        return True

    def postpone(self, message: MessageExt) -> None:
        """Forget that a listener got `message`: it waits for its next delivery."""
        self._started.pop(message.queue_offset, None)

    def remove(self, message: MessageExt) -> int | None:
        """Let go of `message`; return the queue offset that may be committed now.

        That is the lowest offset still held or, with nothing held, where the next pull begins.
        None if the message was not held: then nothing may be committed on its account.
        """
        offset, held = message.queue_offset, self._messages
        if held.get(offset) is not message:
            return None
        del held[offset]
        self._started.pop(offset, None)
        self.size_bytes -= len(message.body)
        if held:
            return self._lowest()
        self._order.clear()  # or what is skipped lazily gathers, where messages come one by one
        return self._end

    def remove_all(self, messages: Iterable[MessageExt]) -> int | None:
        """Let go of all `messages`, as `remove` does; return what the last of them would give."""
        # One call for many: `remove` for each costs as much as many listeners do.
        held, started = self._messages, self._started
        is_any = False
        for message in messages:
            offset = message.queue_offset
            if held.get(offset) is message:
                del held[offset]
                started.pop(offset, None)
                self.size_bytes -= len(message.body)
                is_any = True
        if not is_any:
            return None
        if held:
            return self._lowest()
        self._order.clear()
        return self._end

    def committable(self) -> int | None:
        """Return the queue offset below which all is done; None before the first pull."""
        return self._lowest() if self._messages else self._end

    def overdue(self, started_before_ms: int, limit: int) -> list[MessageExt]:
        """Return the first messages in offset order that a listener has held since before then.

        Looks from the lowest offset and stops at the first message that is not overdue, so that
        what it frees lets the commit advance. At most `limit`.
        """
        found: list[MessageExt] = []
        for offset in sorted(self._messages):
            started_at_ms = self._started.get(offset)
            if len(found) == limit or started_at_ms is None or started_at_ms >= started_before_ms:
                break
            found.append(self._messages[offset])
        return found

    def drop(self) -> None:
        """Give the queue up: hold nothing and never commit again."""
        self.is_dropped = True
        self._messages.clear()
        self._order.clear()
        self._started.clear()
        self.size_bytes = 0

    def _lowest(self) -> int:
        """Return the lowest offset held; there is one."""
        order, held = self._order, self._messages
        while order[0] not in held:
            order.popleft()
        return order[0]
