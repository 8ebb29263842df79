"""Popped messages in hand: the counterpart of a process queue for messages without an offset; pure.

A popped message is settled by itself, so there is no committable offset. Listeners and loops take
popped and pulled messages in the same way (`kourou.client.consuming.pulling.delivery`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kourou.client.pop_result import PoppedMessage
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue


class PoppedMessages:
    """The messages of one source, or of one of its queues, that were popped and are not settled.

    Args:
        queue: the queue; its id is -1 for the messages of all queues of a broker.
        on_done: called with messages that are done and must be acknowledged.
        on_changed: called when fewer messages are held.

    Attributes:
        queue: as given.
        is_dropped: no message is delivered or settled from here any more. Never reset.
        size_bytes: total size of the bodies held.
        last_consumed_at_ms: time of the last start of a delivery, in epoch milliseconds; 0 before
            the first.
    """

    needs_lock = False
    """A queue lock is not needed: the broker delivers a message to one member."""

    __slots__ = (
        "_checks",
        "_held",
        "_on_changed",
        "_on_done",
        "_since",
        "_started",
        "is_dropped",
        "last_consumed_at_ms",
        "queue",
        "size_bytes",
    )

    def __init__(
        self,
        queue: MessageQueue,
        on_done: Callable[[list[PoppedMessage]], None],
        on_changed: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.is_dropped = False
        self.size_bytes = 0
        self.last_consumed_at_ms = 0
        self._on_done = on_done
        self._on_changed = on_changed
        self._held: dict[int, PoppedMessage] = {}  # by id of the object
        self._started: set[int] = set()  # ids
        self._since: dict[int, int] = {}  # id -> value of _checks when it arrived or was started
        self._checks = 0

    def __len__(self) -> int:
        """Return the number of messages held."""
        return len(self._held)

    @property
    def messages(self) -> list[PoppedMessage]:
        """All messages held, in the order of their arrival."""
        return list(self._held.values())

    @property
    def waiting(self) -> list[PoppedMessage]:
        """The messages whose delivery has not started, in the order of their arrival."""
        return [one for key, one in self._held.items() if key not in self._started]

    def put(self, messages: Iterable[PoppedMessage]) -> None:
        """Hold messages that were just popped."""
        held, since, checks, size_bytes = self._held, self._since, self._checks, 0
        for message in messages:
            key = id(message)
            held[key] = message
            since[key] = checks
            size_bytes += len(message.body)
        self.size_bytes += size_bytes

    def holds(self, message: MessageExt) -> bool:
        """Return whether the message is held: not settled."""
        return id(message) in self._held

    def start(self, message: MessageExt, now_ms: int) -> bool:
        """Record that the delivery of `message` starts; False if it is no longer held.

        May be called from any thread.
        """
        key = id(message)
        if key not in self._held:
            return False
        self._since[key] = self._checks
        self._started.add(key)
        self.last_consumed_at_ms = now_ms
        return True

    def postpone(self, message: MessageExt) -> None:
        """Record that `message` waits for its next delivery; no listener has it any more."""
        self._started.discard(id(message))
        if id(message) in self._held:
            self._since[id(message)] = self._checks

    def remove(self, message: MessageExt) -> None:
        """Remove `message`, which is done and must be acknowledged. There is no offset to commit.

        No effect if it is not held.
        """
        self.remove_all((message,))

    def remove_all(self, messages: Iterable[MessageExt]) -> None:
        """Remove all `messages`, as `remove` does."""
        done = self.take(messages)
        if done:
            self._on_done(done)

    def take(self, messages: Iterable[MessageExt]) -> list[PoppedMessage]:
        """Remove those of `messages` that are held, and return them: the caller settles them."""
        taken, size_bytes = [], 0
        pop, forget, end = self._held.pop, self._since.pop, self._started.discard
        for message in messages:
            key = id(message)
            held = pop(key, None)
            if held is not None:
                forget(key, None)
                end(key)
                size_bytes += len(held.body)
                taken.append(held)
        self.size_bytes -= size_bytes
        if taken:
            self._on_changed()
        return taken

    def overdue(self, limit: int) -> list[MessageExt]:
        """Return messages whose delivery was already running at the previous call, at most `limit`.

        To be called once in each listener timeout period, after `overdue_waiting`.
        """
        checks, self._checks = self._checks, self._checks + 1
        found: list[MessageExt] = []
        for key, message in self._held.items():
            if key in self._started and self._is_old(key, checks) and len(found) < limit:
                found.append(message)
        return found

    def overdue_waiting(self) -> list[PoppedMessage]:
        """Return messages that waited for a listener at the previous call of `overdue` already."""
        return [one for one in self.waiting if self._is_old(id(one), self._checks)]

    def _is_old(self, key: int, checks: int) -> bool:
        return self._since.get(key, checks) < checks

    def drop(self) -> None:
        """Drop all messages: they become visible again by themselves."""
        self.is_dropped = True
        self._held.clear()
        self._started.clear()
        self._since.clear()
        self.size_bytes = 0
        self._on_changed()
