"""One delay level: where its delivery is, and when its next message is due. Pure.

Source: ScheduleMessageService.DeliverDelayedMessageTimerTask, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kourou.store.formats import QueueEntry
from kourou.store.log.record_check import Wanted


@dataclass(slots=True)
class DelayLevel:
    """One delay level.

    Attributes:
        queue_offset: the first message that was not delivered yet.
        look_at_ms: when to look at it, in the loop's time.
        is_empty: the last look found no message at all.
        is_busy: messages of it are being read or delivered.
        ahead_until_ms: when those are due whose own time is too far ahead, in the loop's time;
            None when none was found.
        ahead_end: the queue offset below which such messages have waited long enough.
        read_ahead: entries that were compared with their records, from `read_from` on.
    """

    number: int
    delay_ms: int
    queue_offset: int
    look_at_ms: int = 0
    is_empty: bool = True
    is_busy: bool = False
    ahead_until_ms: int | None = None
    ahead_end: int = 0
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

    def wait_ms(self, queue_offset: int, told_ms: int, end: int, steady: int) -> int:
        """Return how long a message has to wait yet.

        Args:
            queue_offset: of the message.
            told_ms: how long by its own account.
            end: of the level's queue.
            steady: the loop's time.
        """
        if told_ms <= self.delay_ms:
            self.ahead_until_ms = None
            return told_ms
        if queue_offset < self.ahead_end:
            return 0
        if self.ahead_until_ms is None:
            self.ahead_until_ms = steady + self.delay_ms
        if steady < self.ahead_until_ms:
            return self.ahead_until_ms - steady
        # All that came while the first of them waited go with it: else each would wait in turn.
        self.ahead_until_ms = None
        self.ahead_end = end
        return 0
