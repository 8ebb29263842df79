"""Process queue: the held messages of one queue and its committable offset; pure.

Messages of a queue are consumed in any order, but the committed offset covers the whole queue: all
messages below it are done. So the committable offset is the lowest offset still held, and a message
that is never finished blocks the offset. After a crash, messages are redelivered from the committed
offset.

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
        is_draining: the queue is being revoked: only messages that listeners have started are held,
            and they can still be finished. Never reset.
        is_dropped: the queue was released or restarted: its messages must not be delivered, sent
            back or committed from here. Never reset.
        size_bytes: total size of the bodies held, as pulled.
        last_consumed_at_ms: time of the last start of a delivery, in epoch milliseconds; 0 before
            the first.
    """

    needs_lock = True
    """An ordered consumer must hold the queue's lock while it delivers messages."""

    __slots__ = (
        "_checks",
        "_end",
        "_highest",
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
        # Offsets, ascending; those no longer in _messages are removed lazily.
        self._order: deque[int] = deque()
        self._started: dict[int, int] = {}  # offset -> value of _checks when its delivery started
        self._checks = 0
        self._highest = -1
        self._end: int | None = None
        self._on_idle: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Return the number of messages held."""
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

    @property
    def started(self) -> list[int]:
        """The offsets of deliveries that have started and are not done."""
        return list(self._started)

    @property
    def ordered_count(self) -> int:
        """Number of offsets kept in order, including stale ones not yet removed."""
        return len(self._order)

    def put(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """Add `messages`; return those that were not held yet, in the given order.

        A draining queue adds none.
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
            if not is_ascending:  # some are below those held: pulled again
                self._order = deque(sorted(held))
            self.advance(highest + 1)
        return added

    def advance(self, offset: int) -> None:
        """Record that all messages below `offset` were pulled or are not subscribed."""
        if (self._end is None or offset > self._end) and not self.is_draining:
            self._end = offset

    def holds(self, message: MessageExt) -> bool:
        """Return whether this message object is held: neither done nor revoked."""
        return self._messages.get(message.queue_offset) is message

    def start(self, message: MessageExt, now_ms: int) -> bool:
        """Record that the delivery of `message` starts; False if it is no longer held.

        Args:
            message: the message.
            now_ms: epoch milliseconds; only reported to administrators.
        """
        offset = message.queue_offset
        if self._messages.get(offset) is not message:
            return False
        self._started[offset] = self._checks
        self.last_consumed_at_ms = now_ms
        return True

    def postpone(self, message: MessageExt) -> None:
        """Record that `message` waits for its next delivery; no listener has it any more.

        If the queue is draining, the message is left to the next owner.
        """
        if self._started.pop(message.queue_offset, None) is not None and self.is_draining:
            self._drop_messages([message.queue_offset])
            self._notify_idle()

    def remove(self, message: MessageExt) -> int | None:
        """Remove `message`, which is done; return the committable queue offset.

        That is the lowest offset still held or, if none is held, the offset of the next pull. None
        if the message was not held: then nothing may be committed for it.
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
        self._order.clear()  # stale offsets would accumulate if messages arrive one by one
        return self._end

    def remove_all(self, messages: Iterable[MessageExt]) -> int | None:
        """Remove all `messages` as `remove` does; return the resulting committable offset."""
        # One call for many: calling `remove` for each costs as much as many listeners do.
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
        """Return the queue offset below which all messages are done; None before the first pull."""
        if self.is_draining:
            return self._drained()
        return self._lowest() if self._messages else self._end

    def overdue(self, limit: int) -> list[MessageExt]:
        """Return messages whose delivery was already running at the previous call, by offset.

        To be called once in each listener timeout period. Counting calls needs no clock, which
        could be set. Checks from the lowest offset and stops at the first message that is not
        overdue, so that removing the result advances the committable offset. At most `limit`.
        """
        checks, self._checks = self._checks, self._checks + 1
        found: list[MessageExt] = []
        for offset in sorted(self._messages):
            started = self._started.get(offset)
            if len(found) == limit or started is None or started >= checks:
                break
            found.append(self._messages[offset])
        return found

    def drain(self, on_idle: Callable[[], None]) -> bool:
        """Drop the messages that no listener has started, add no more; return whether any remain.

        Remaining messages can be finished; they advance the committable offset at most to the first
        message that was dropped.

        Args:
            on_idle: called once when none remain; not called if none remain now.
        """
        self.is_draining = True
        self._drop_messages([one for one in self._messages if one not in self._started])
        if self._messages:
            self._on_idle = on_idle
        return bool(self._messages)

    def drop(self) -> None:
        """Drop all messages; nothing is committed any more."""
        self.is_dropped = True
        self._messages.clear()
        self._order.clear()
        self._started.clear()
        self.size_bytes = 0
        self._notify_idle()

    def _drop_messages(self, offsets: list[int]) -> None:
        """Drop the messages at these queue offsets without marking them as done."""
        for offset in offsets:
            self.size_bytes -= len(self._messages.pop(offset).body)
            if self._end is None or offset < self._end:
                self._end = offset

    def _drained(self) -> int | None:
        """Return the committable queue offset of a draining queue."""
        if not self._messages:
            self._notify_idle()
            return self._end
        lowest = self._lowest()
        return lowest if self._end is None else min(lowest, self._end)

    def _notify_idle(self) -> None:
        if self._on_idle is not None and not self._messages:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def _lowest(self) -> int:
        """Return the lowest offset held; at least one message must be held."""
        order, held = self._order, self._messages
        while order[0] not in held:
            order.popleft()
        return order[0]
