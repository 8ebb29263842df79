"""The held messages and offsets of one queue of a pull consumer; pure.

    committable          position              next_offset
        │ returned by the   │ held, returned by     │ to be pulled
        │ last poll         │ the next polls        │
    ────┴───────────────────┴───────────────────────┴──▶ queue offsets

A poll acknowledges the messages of the poll before it: `committable` then advances to `position`.

Source: AssignedMessageQueue.java and DefaultLitePullConsumerImpl.poll, where a batch counts as
consumed as soon as it is returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue


class PolledQueue:
    """The messages of one queue that were pulled and not yet returned, and the offsets around them.

    Attributes:
        queue: the queue.
        is_paused: the queue is neither pulled nor polled.
        next_offset: the queue offset to pull next; None until the start offset is known.
        size_bytes: total size of the bodies held.
        max_offset: the queue offset of the next message to be stored, as of the last pull.
        polled_at_ms: time at which messages were last returned, in epoch milliseconds; 0: never.
    """

    __slots__ = (
        "_messages",
        "_start",
        "_unacknowledged_from",
        "is_paused",
        "max_offset",
        "next_offset",
        "polled_at_ms",
        "queue",
        "size_bytes",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.is_paused = False
        self.next_offset: int | None = None
        self.size_bytes = 0
        self.max_offset: int | None = None
        self.polled_at_ms = 0
        self._messages: deque[MessageExt] = deque()
        self._unacknowledged_from: int | None = None  # first returned and unacknowledged offset
        self._start: int | None = None  # the group's committed offset at the start

    def __len__(self) -> int:
        """Return the number of messages held."""
        return len(self._messages)

    @property
    def span(self) -> int:
        """Distance between the lowest and the highest offset held; 0 when empty."""
        held = self._messages
        return held[-1].queue_offset - held[0].queue_offset if held else 0

    @property
    def highest(self) -> int | None:
        """The highest queue offset held; None when empty."""
        return self._messages[-1].queue_offset if self._messages else None

    @property
    def position(self) -> int | None:
        """The queue offset of the next message to return; None until the start is known."""
        return self._messages[0].queue_offset if self._messages else self.next_offset

    @property
    def committable(self) -> int | None:
        """The queue offset below which all is acknowledged; None if it is committed already."""
        offset = self.done_offset
        return None if offset == self._start else offset

    @property
    def done_offset(self) -> int | None:
        """The queue offset below which all is acknowledged; None until the start is known."""
        return self.position if self._unacknowledged_from is None else self._unacknowledged_from

    def begin(self, offset: int, *, is_committed: bool = True) -> None:
        """Start at a queue offset; with `is_committed` it is the group's committed offset.

        If it is not, it is committable immediately: a member that takes over before the first
        acknowledgement must not choose a later start offset, behind messages stored meanwhile.
        """
        self.next_offset = offset
        self._start = offset if is_committed else None

    def move(self, offset: int) -> None:
        """Continue at another queue offset; drop all held and unacknowledged messages.

        The offset may be lower, and is committable even if it equals the committed offset.
        """
        self._messages.clear()
        self.size_bytes = 0
        self._unacknowledged_from = None
        self._start = None
        self.next_offset = offset

    def put(self, messages: Sequence[MessageExt], next_offset: int) -> None:
        """Add `messages`, in offset order from `next_offset` on, and set the new `next_offset`."""
        self._messages.extend(messages)
        self.size_bytes += sum(len(message.body) for message in messages)
        self.next_offset = next_offset

    def take(self, limit: int) -> list[MessageExt]:
        """Remove and return at most `limit` messages, in offset order."""
        taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
        if taken:
            self.size_bytes -= sum(len(message.body) for message in taken)
            if self._unacknowledged_from is None:
                self._unacknowledged_from = taken[0].queue_offset
        return taken

    @property
    def is_unacknowledged(self) -> bool:
        """Whether messages were returned that are not acknowledged."""
        return self._unacknowledged_from is not None

    def acknowledge(self) -> None:
        """Acknowledge all returned messages."""
        self._unacknowledged_from = None
