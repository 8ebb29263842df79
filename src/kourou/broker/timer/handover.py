"""Scheduled messages that change hands between a master and the slave that acts for it.

The slave delivers messages by other brokers. Messages that have to be rolled wait in a later slot,
since it cannot append to the log, and are delivered by it if they become due. Records of the broker
itself, such as those of pops, are left to the master. The master that returns leaves out what the
slave has delivered, and rolls the others: so the slave may later have a message twice, as it was
sent and as it was rolled.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.model.topic import is_broker_only
from kourou.store.timer.delivered import DeliveryKey
from kourou.store.timer.slot_choice import out_ms
from kourou.store.timer.timer_record import TimerRecord

_TIMES_MAX: Final = 8


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
        # By due second; of messages that the wheel may have twice.
        self._sent: dict[int, set[DeliveryKey]] = {}

    def note_elsewhere(self, out_before_ms: int, offset_before: int) -> None:
        """Note the progress of a slave that has acted for this master."""
        self.elsewhere = max(self.elsewhere, TimerProgress(out_before_ms, offset_before))

    def leaves_out(self, timer: TimerRecord, key: DeliveryKey) -> bool:
        """Return whether a message leaves the wheel without a delivery or a roll.

        Args:
            timer: the message.
            key: of its delivery.
        """
        is_own = is_broker_only(timer.topic)
        if not self.is_acting:
            before_ms, offset = self.elsewhere
            was_delivered = timer.out_at_ms < before_ms and timer.header.queue_offset < offset
            return was_delivered and not is_own
        return is_own or key in self._sent.get(timer.out_at_ms, ())

    def waits_on(self, timer: TimerRecord) -> bool:
        """Return whether a message that has to be rolled waits in a later slot instead."""
        return self.is_acting and not is_broker_only(timer.topic)

    def note_sent(self, timer: TimerRecord, key: DeliveryKey) -> None:
        """Note the delivery of a message that the wheel may have twice: both are due together."""
        if self.is_acting:
            self._sent.setdefault(timer.out_at_ms, set()).add(key)
            if len(self._sent) > _TIMES_MAX:
                del self._sent[min(self._sent)]

    def progress(self, until_ms: int, queue_offset: int) -> TimerProgress:
        """Return the progress of a slave that has delivered all that was due before `until_ms`."""
        return TimerProgress(out_ms(until_ms), queue_offset)
