"""Scheduled messages that change hands between a master and the slave that acts for it.

The slave delivers messages by other brokers, and leaves those to the master that it cannot keep or
deliver: messages that have to be rolled, and records of the broker itself, such as those of pops.
The master that returns leaves out what the slave has delivered.
"""

from __future__ import annotations

from typing import NamedTuple

from kourou.model.topic import is_broker_only
from kourou.store.timer.slot_choice import out_ms
from kourou.store.timer.timer_record import TimerRecord

_NEVER_MS = 2**62


class TimerProgress(NamedTuple):
    """The messages that a broker has delivered.

    Attributes:
        out_before_ms: those whose `out_at_ms` is before this time,
        offset_before: of the messages of the timer topic before this queue offset.
    """

    out_before_ms: int
    offset_before: int


class TimerHandover:
    """State of one broker's timer.

    Attributes:
        is_acting: whether this is a slave that acts for its master.
        elsewhere: what another broker of the name has delivered.
    """

    def __init__(self) -> None:
        """Deliver everything."""
        self.is_acting = False
        self.elsewhere = TimerProgress(0, 0)
        self._left_from_ms = _NEVER_MS  # messages due from then on may have left the wheel

    def note_elsewhere(self, out_before_ms: int, offset_before: int) -> None:
        """Note the progress of a slave that has acted for this master."""
        self.elsewhere = max(self.elsewhere, TimerProgress(out_before_ms, offset_before))

    def leaves_out(self, timer: TimerRecord, *, is_roll: bool) -> bool:
        """Return whether a message leaves the wheel without a delivery or a roll."""
        is_own = is_broker_only(timer.topic)
        if not self.is_acting:
            before_ms, offset = self.elsewhere
            was_delivered = timer.out_at_ms < before_ms and timer.header.queue_offset < offset
            return was_delivered and not is_own
        if is_roll:
            self._left_from_ms = min(self._left_from_ms, timer.due_at_ms)
        return is_roll or is_own

    def progress(self, until_ms: int, queue_offset: int) -> TimerProgress:
        """Return the progress of a slave that has delivered all that was due before `until_ms`."""
        return TimerProgress(out_ms(min(until_ms, self._left_from_ms)), queue_offset)
