"""One delay level: where its delivery is, and when its next message is due. Pure.

Source: ScheduleMessageService.DeliverDelayedMessageTimerTask, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.store.formats import QueueEntry
from kourou.store.log.record_check import Wanted

ARRIVALS_MAX: Final = 200
_PARTS: Final = 100
_PART_MIN_MS: Final = 100


class Arrived(NamedTuple):
    """What came to a level: its messages below `end` were there at `at_ms`, in the loop's time."""

    at_ms: int
    end: int


@dataclass(slots=True)
class DelayLevel:
    """One delay level.

    Attributes:
        queue_offset: the first message that was not delivered yet.
        look_at_ms: when to look at it, in the loop's time.
        is_empty: the last look found no message at all.
        is_busy: messages of it are being read or delivered.
        arrived: when messages came, to a hundredth of the delay, the oldest first.
        read_ahead: entries that were compared with their records, from `read_from` on.
    """

    number: int
    delay_ms: int
    queue_offset: int
    look_at_ms: int = 0
    is_empty: bool = True
    is_busy: bool = False
    arrived: deque[Arrived] = field(default_factory=lambda: deque(maxlen=ARRIVALS_MAX))
    read_ahead: Sequence[QueueEntry] = field(default=())
    read_from: int = 0

    @property
    def queue_id(self) -> int:
        """Its queue of SCHEDULE_TOPIC_XXXX."""
        return self.number - 1

    def known(self) -> Sequence[QueueEntry]:
        """Return the entries that were read ahead and are not delivered yet."""
        at = self.queue_offset - self.read_from
        return self.read_ahead[at:] if 0 <= at < len(self.read_ahead) else ()

    def note_ahead(self, wanted: Sequence[Wanted]) -> None:
        """Note entries that were compared, as far as they follow one another without a hole."""
        count = 0
        while count < len(wanted) and wanted[count].queue_offset == wanted[0].queue_offset + count:
            count += 1
        self.read_from = self.queue_offset
        self.read_ahead = [QueueEntry._make(one[1:]) for one in wanted[:count]]

    def note_arrival(self, end: int, steady: int) -> None:
        """Note that the level's queue ends there now."""
        part_ms = max(_PART_MIN_MS, self.delay_ms // _PARTS)
        while self.arrived and self.arrived[0].end <= self.queue_offset:
            self.arrived.popleft()
        if self.arrived and self.arrived[-1].at_ms // part_ms == steady // part_ms:
            self.arrived.pop()
        self.arrived.append(Arrived(steady, end))

    def wait_ms(self, queue_offset: int, told_ms: int, end: int, steady: int) -> int:
        """Return how long a message has to wait yet.

        One whose own time is further ahead than its level allows waits as long as its level says
        from when it came, or from now on if it came before the start.

        Args:
            queue_offset: of the message.
            told_ms: how long by its own account.
            end: of the level's queue.
            steady: the loop's time.
        """
        if told_ms <= self.delay_ms:
            return told_ms
        if not self.arrived or self.arrived[-1].end <= queue_offset:
            self.note_arrival(end, steady)
        at_ms = next(one.at_ms for one in self.arrived if queue_offset < one.end)
        return max(0, at_ms + self.delay_ms - steady)
