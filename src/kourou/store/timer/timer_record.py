"""A message that waits in the timer topic: what its record says, and what is stored when it is due.

Source: TimerMessageStore.convert and convertMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.property_limits import fitting_properties
from kourou.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.message_layout import RecordDraft, RecordHeader, redraft
from kourou.store.log.record_seal import read_checked
from kourou.store.timer.delivered import DeliveryKey, delivery_key
from kourou.store.timer.layouts import KIND_DEFAULT, KIND_DELETE, PRECISION_MS, TimerUnit
from kourou.store.timer.placing import SlotChoice, exact_due_ms

_TIME_DIGITS_MAX: Final = 15
_QUEUE_DIGITS_MAX: Final = 9
_DELAY_MS_MAX: Final = 2**31 - 1
"""That four bytes hold: 24 days."""
_NOWHERE: Final = ("", TRANS_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)

RecallKey = tuple[str, str]
"""Topic and unique id of a message that was taken back."""


class TimerRecord(NamedTuple):
    """One message of the timer topic.

    Attributes:
        out_at_ms: the second before its time, in milliseconds.
        due_at_ms: its time.
        topic: where it goes.
        queue_id: the queue there.
    """

    header: RecordHeader
    record: bytes
    properties: dict[str, str]
    out_at_ms: int
    due_at_ms: int
    topic: str
    queue_id: int

    @property
    def is_delete(self) -> bool:
        """Whether it takes another message back."""
        return names.TIMER_DEL_UNIQKEY in self.properties

    @property
    def key(self) -> RecallKey:
        """What takes this message back; of one that takes another back, which."""
        text = self.properties.get(names.TIMER_DEL_UNIQKEY)
        if text is None:
            return self.topic, self.properties.get(names.UNIQ_KEY, "")
        return self.topic, text.removeprefix(f"{self.topic}+")

    @property
    def counted_topic(self) -> str | None:
        """The topic for which it counts; None if it takes another message back."""
        return None if self.is_delete else self.topic

    def unit(self, choice: SlotChoice, now_ms: int) -> TimerUnit:
        """Return its unit for the timer log, for a slot; nothing is before it yet."""
        kind = KIND_DEFAULT | KIND_DELETE if self.is_delete else KIND_DEFAULT
        slot_at_ms = choice.second * PRECISION_MS
        written_at_ms = now_ms // PRECISION_MS * PRECISION_MS
        if abs(slot_at_ms - written_at_ms) > _DELAY_MS_MAX:  # the clock was set
            written_at_ms = slot_at_ms
        return TimerUnit(
            -1,
            kind,
            written_at_ms,
            slot_at_ms - written_at_ms,
            self.header.physical_offset,
            self.header.total_size,
            java_string_hash(self.topic),
            choice.roll_at_ms if choice.is_roll else self.due_at_ms,
        )


def read_timer_record(record: bytes) -> TimerRecord:
    """Return what a record of the timer topic says.

    Raises:
        MalformedMessageError: it is no record of that topic, or does not say when it is due, or
            goes to a topic that nothing is delivered to.
    """
    header = read_checked(record, 0)
    begin = header.properties_start
    properties = decode_properties(record[begin : begin + header.properties_size])
    time = properties.get(names.TIMER_OUT_MS, "")
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    if (
        header.topic != TIMER_TOPIC
        or topic in _NOWHERE
        or not _is_number(queue_id, _QUEUE_DIGITS_MAX)
        or not _is_time(time)
    ):
        raise MalformedMessageError(
            f"timer record at byte {header.physical_offset} of topic {header.topic} is due at "
            f"{time[:40]!r}, for queue {queue_id[:40]!r} of topic {topic!r}"
        )
    due_at_ms = told_due_ms(properties)
    assert due_at_ms is not None, "it is a time"
    return TimerRecord(header, record, properties, int(time), due_at_ms, topic, int(queue_id))


def told_due_ms(properties: Mapping[str, str]) -> int | None:
    """Return when exactly a message of the timer topic is due; None if it does not say so."""
    time, told = properties.get(names.TIMER_OUT_MS, ""), properties.get(names.TIMER_DELIVER_MS, "")
    if not _is_time(time):
        return None
    # Java lets TIMER_DELAY_SEC be, and a time beside it that counts for nothing.
    return exact_due_ms(int(time), int(told) if _is_time(told) else 0)


def _is_time(text: str) -> bool:
    return _is_number(text, _TIME_DIGITS_MAX)


def _is_number(text: str, digits_max: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits_max


def due_timer_draft(
    timer: TimerRecord, now_ms: int, enqueued_at_ms: int, *, is_roll: bool
) -> tuple[RecordDraft, DeliveryKey]:
    """Return the message as it is stored when its slot comes, and what tells that from others.

    It keeps all that it has, and says when it was put into the wheel and taken out again, where
    there is room for that. One that is rolled goes into the timer topic again, and counts how
    often.
    """
    header, properties = timer.header, dict(timer.properties)
    properties.pop(names.CRC32, None)
    properties[names.TIMER_ENQUEUE_MS] = str(enqueued_at_ms)
    properties[names.TIMER_DEQUEUE_MS] = str(now_ms)
    topic, queue_id = timer.topic, timer.queue_id
    if is_roll:
        times = properties.get(names.TIMER_ROLL_TIMES, "0")
        properties[names.TIMER_ROLL_TIMES] = str(int(times) + 1 if _is_time(times) else 1)
        topic, queue_id = TIMER_TOPIC, 0
    text = fitting_properties(properties, waits=is_roll)
    draft = redraft(timer.record, header, topic, queue_id, text)
    return draft, delivery_key(topic, properties)
