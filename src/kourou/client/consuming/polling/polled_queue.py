"""What a pull consumer holds of one queue between a pull and the `poll` that gives it; pure.

    committable          position              next_offset
        │ given by the last │ held, to be given     │ to be pulled
        │ poll              │ by the next ones      │
    ────┴───────────────────┴───────────────────────┴──▶ queue offsets

A poll acknowledges what the poll before it gave: `committable` then moves up to `position`.

Source: AssignedMessageQueue.java and DefaultLitePullConsumerImpl.poll, where a batch counts as
consumed when it is handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue


class PolledQueue:
    """The messages of one queue that were pulled and not given yet, and the offsets around them.

    Attributes:
        queue: the queue.
        is_paused: nothing is pulled nor given.
        next_offset: the queue offset to pull next; None until the start is known.
        size_bytes: sum of the bodies held.
        max_offset: the queue offset that the next message will have, as of the last pull.
        given_at_ms: when messages of it were given last, in epoch milliseconds; 0 if none were.
    """

    __slots__ = (
        "_given_from",
        "_messages",
        "_start",
        "given_at_ms",
        "is_paused",
        "max_offset",
        "next_offset",
        "queue",
        "size_bytes",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.is_paused = False
        self.next_offset: int | None = None
        self.size_bytes = 0
        self.max_offset: int | None = None
        self.given_at_ms = 0
        self._messages: deque[MessageExt] = deque()
        self._given_from: int | None = None  # first offset given and not acknowledged
        self._start: int | None = None  # what the group had committed when we came

    def __len__(self) -> int:
        """Return how many messages are held."""
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
        """The queue offset of what is given next; None until the start is known."""
        return self._messages[0].queue_offset if self._messages else self.next_offset

    @property
    def committable(self) -> int | None:
        """The queue offset below which all is acknowledged; None if it is what the group had."""
        offset = self.done_offset
        return None if offset == self._start else offset

    @property
    def done_offset(self) -> int | None:
        """The queue offset below which all is acknowledged; None until the start is known."""
        return self.position if self._given_from is None else self._given_from

    def begin(self, offset: int, *, is_committed: bool = True) -> None:
        """Start at a queue offset, that of the group if `is_committed`.

        Where it is not, it is committable at once: who takes over before anything was acknowledged
        must not choose a later start of its own, behind the messages that came meanwhile.
        """
        self.next_offset = offset
        self._start = offset if is_committed else None

    def move(self, offset: int) -> None:
        """Go on at another queue offset; what is held, or was given by the last poll, is dropped.

        The offset may go back, and is committable even if the group was there before.
        """
        self._messages.clear()
        self.size_bytes = 0
        self._given_from = None
        self._start = None
        self.next_offset = offset

    def put(self, messages: Sequence[MessageExt], next_offset: int) -> None:
        """Hold `messages`, in offset order from `next_offset` as it was; pull on there."""
        self._messages.extend(messages)
        self.size_bytes += sum(len(message.body) for message in messages)
        self.next_offset = next_offset

    def take(self, limit: int) -> list[MessageExt]:
        """Give at most `limit` messages, in offset order."""
        taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
        if taken:
            self.size_bytes -= sum(len(message.body) for message in taken)
            if self._given_from is None:
                self._given_from = taken[0].queue_offset
        return taken

    @property
    def is_given(self) -> bool:
        """Whether something was given and is not acknowledged."""
        return self._given_from is not None

    def acknowledge(self) -> None:
        """Note that all that was given is done."""
        self._given_from = None
