"""What a consumer holds of one queue, and the offset that may be committed; pure.

Messages of a queue are consumed in any order, but an offset is committed for a queue as a whole:
it says that everything below it is done. So the committable offset is the lowest one still held,
and a message that never ends holds back all commits behind it. A crash redelivers from there.

Source: ProcessQueue.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue


class ProcessQueue:
    """The messages of one queue that were pulled and are not done.

    Attributes:
        queue: the queue.
        is_draining: the queue is about to go to another member: only what listeners have begun
            with is held, and can still be finished. Never set back.
        is_dropped: the queue belongs to another member now: its messages must not be delivered,
            sent back or committed from here any more. Never set back.
        size_bytes: sum of the bodies held, as pulled.
        last_consumed_at_ms: when a listener last got a message; 0 if none did.
    """

    __slots__ = (
        "_end",
        "_highest",
        "_looks",
        "_messages",
        "_on_idle",
        "_order",
        "_started",
        "is_draining",
        "is_dropped",
        "last_consumed_at_ms",
        "queue",
        "size_bytes",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.is_draining = False
        self.is_dropped = False
        self.size_bytes = 0
        self.last_consumed_at_ms = 0
        self._messages: dict[int, MessageExt] = {}
        # Offsets, ascending; those no longer in _messages are skipped lazily.
        self._order: deque[int] = deque()
        self._started: dict[int, int] = {}  # offset -> looks for overdue messages before its call
        self._looks = 0
        self._highest = -1
        self._end: int | None = None
        self._on_idle: Callable[[], None] | None = None

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
        """Hold `messages`; return those that were not held yet, in the order given.

        None is held once the queue is draining.
        """
        if self.is_draining:
            return []
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
        if (self._end is None or offset > self._end) and not self.is_draining:
            self._end = offset

    def holds(self, message: MessageExt) -> bool:
        """Return whether this very message is held: neither done nor given up."""
        return self._messages.get(message.queue_offset) is message

    def start(self, message: MessageExt, now_ms: int) -> bool:
        """Remember that a listener gets `message` now; False if it is not held any more.

        Args:
            message: the message.
            now_ms: epoch milliseconds, for administrators; nothing else depends on it.
        """
        offset = message.queue_offset
        if self._messages.get(offset) is not message:
            return False
        self._started[offset] = self._looks
        self.last_consumed_at_ms = now_ms
        return True

    def postpone(self, message: MessageExt) -> None:
        """Forget that a listener got `message`: it waits for its next delivery.

        That is another member's once the queue is draining.
        """
        if self._started.pop(message.queue_offset, None) is not None and self.is_draining:
            self._leave_to_others([message.queue_offset])
            self._tell_idle()

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
        if self.is_draining:
            return self._drained()
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
        if self.is_draining:
            return self._drained()
        if held:
            return self._lowest()
        self._order.clear()
        return self._end

    def committable(self) -> int | None:
        """Return the queue offset below which all is done; None before the first pull."""
        if self.is_draining:
            return self._drained()
        return self._lowest() if self._messages else self._end

    def overdue(self, limit: int) -> list[MessageExt]:
        """Return the first messages in offset order that a listener held at the last call already.

        To be called once in each period that a listener may have a message: counting the calls
        needs no clock, which may be set. Looks from the lowest offset and stops at the first
        message that is not overdue, so that what it frees lets the commit advance. At most `limit`.
        """
        looks, self._looks = self._looks, self._looks + 1
        found: list[MessageExt] = []
        for offset in sorted(self._messages):
            started = self._started.get(offset)
            if len(found) == limit or started is None or started >= looks:
                break
            found.append(self._messages[offset])
        return found

    def drain(self, on_idle: Callable[[], None]) -> bool:
        """Give up what no listener has begun with, and hold no more; return whether some is left.

        What is left can be finished, and moves the offset that may be committed as far as the first
        message that was given up.

        Args:
            on_idle: called once when nothing is left, if something is now.
        """
        self.is_draining = True
        self._leave_to_others([one for one in self._messages if one not in self._started])
        if self._messages:
            self._on_idle = on_idle
        return bool(self._messages)

    def drop(self) -> None:
        """Give the queue up: hold nothing and never commit again."""
        self.is_dropped = True
        self._messages.clear()
        self._order.clear()
        self._started.clear()
        self.size_bytes = 0
        self._tell_idle()

    def _leave_to_others(self, offsets: list[int]) -> None:
        """Hold the messages at these queue offsets no more, though they are not done."""
        for offset in offsets:
            self.size_bytes -= len(self._messages.pop(offset).body)
            if self._end is None or offset < self._end:
                self._end = offset

    def _drained(self) -> int | None:
        """Return the queue offset that may be committed while the queue is draining."""
        if not self._messages:
            self._tell_idle()
            return self._end
        lowest = self._lowest()
        return lowest if self._end is None else min(lowest, self._end)

    def _tell_idle(self) -> None:
        if self._on_idle is not None and not self._messages:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def _lowest(self) -> int:
        """Return the lowest offset held; there is one."""
        order, held = self._order, self._messages
        while order[0] not in held:
            order.popleft()
        return order[0]
