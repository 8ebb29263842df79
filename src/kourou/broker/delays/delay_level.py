"""State of one delay level: the progress of its delivery, and its next check. Pure.

Source: ScheduleMessageService.DeliverDelayedMessageTimerTask, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.protocol.record.check import ExpectedRecord
from kourou.store.formats import QueueEntry

ARRIVALS_MAX: Final = 200
_PARTS: Final = 100
_PART_MIN_MS: Final = 100


class LevelArrival(NamedTuple):
    """Arrivals of a level: its messages below `end` were stored by `at_ms`, in the loop's time."""

    at_ms: int
    end: int


@dataclass(slots=True)
class DelayLevel:
    """One delay level.

    Attributes:
        queue_offset: first message that was not delivered.
        check_at_ms: time of the next check, in the loop's time.
        is_empty: the last check found no message.
        is_busy: its messages are being read or delivered.
        arrived: arrival times, oldest first, with a resolution of a hundredth of the delay.
        read_ahead: entries verified against their records, from `read_from` on.
    """

    number: int
    delay_ms: int
    queue_offset: int
    check_at_ms: int = 0
    is_empty: bool = True
    is_busy: bool = False
    arrived: deque[LevelArrival] = field(default_factory=lambda: deque(maxlen=ARRIVALS_MAX))
    read_ahead: Sequence[QueueEntry] = field(default=())
    read_from: int = 0

    @property
    def queue_id(self) -> int:
        """Queue id in SCHEDULE_TOPIC_XXXX."""
        return self.number - 1

    def ahead_entries(self) -> Sequence[QueueEntry]:
        """Return the entries that were read ahead and are not delivered."""
        at = self.queue_offset - self.read_from
        return self.read_ahead[at:] if 0 <= at < len(self.read_ahead) else ()

    def keep_ahead(self, wanted: Sequence[ExpectedRecord]) -> None:
        """Keep verified entries, up to the first gap in their queue offsets."""
        count = 0
        while count < len(wanted) and wanted[count].queue_offset == wanted[0].queue_offset + count:
            count += 1
        self.read_from = self.queue_offset
        self.read_ahead = [QueueEntry._make(one[1:]) for one in wanted[:count]]

    def note_arrival(self, end: int, steady: int) -> None:
        """Note the present end of the level's queue."""
        part_ms = max(_PART_MIN_MS, self.delay_ms // _PARTS)
        while self.arrived and self.arrived[0].end <= self.queue_offset:
            self.arrived.popleft()
        if self.arrived and self.arrived[-1].at_ms // part_ms == steady // part_ms:
            self.arrived.pop()
        self.arrived.append(LevelArrival(steady, end))

    def remaining_ms(self, queue_offset: int, entry_wait_ms: int, end: int, steady: int) -> int:
        """Return the remaining delay of a message, in ms.

        A message that is due later than its level's delay allows waits for that delay from its
        arrival, or from now on if it arrived before the start.

        Args:
            queue_offset: queue offset of the message.
            entry_wait_ms: remaining delay by its queue entry.
            end: end of the level's queue.
            steady: the loop's time.
        """
        if entry_wait_ms <= self.delay_ms:
            return entry_wait_ms
        if not self.arrived or self.arrived[-1].end <= queue_offset:
            self.note_arrival(end, steady)
        at_ms = next(one.at_ms for one in self.arrived if queue_offset < one.end)
        return max(0, at_ms + self.delay_ms - steady)
