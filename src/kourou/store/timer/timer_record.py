"""Records of the timer topic: decodes a scheduled message and builds the delivered one.

Source: TimerMessageStore.convert and convertMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from kourou.decimals import INT_DIGITS, is_decimal
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.property_limits import encode_fitting_properties
from kourou.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.record.encode import RecordDraft, draft_from_record
from kourou.protocol.record.layout import RecordHeader
from kourou.protocol.record.read import read_checked
from kourou.store.timer.delivered import DeliveryKey, delivery_key
from kourou.store.timer.layouts import KIND_DEFAULT, KIND_DELETE, PRECISION_MS, TimerUnit
from kourou.store.timer.slot_choice import SlotChoice, exact_due_ms

_TIME_DIGITS_MAX: Final = 15
_DELAY_MS_MAX: Final = 2**31 - 1
"""Limit of a signed 32-bit field: 24 days."""
_INVALID_TARGETS: Final = ("", TRANS_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)

RecallKey = tuple[str, str]
"""Topic and unique id of a recalled message."""


class TimerRecord(NamedTuple):
    """One message of the timer topic.

    Attributes:
        out_at_ms: the second before its time (see `out_ms`), epoch milliseconds.
        due_at_ms: its exact time, epoch milliseconds.
        topic: its target topic.
        queue_id: its queue in the target topic.
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
        """True if it is a recall of another message."""
        return names.TIMER_DEL_UNIQKEY in self.properties

    @property
    def key(self) -> RecallKey:
        """Identifies this message in recalls; for a recall, the message that it recalls."""
        text = self.properties.get(names.TIMER_DEL_UNIQKEY)
        if text is None:
            return self.topic, self.properties.get(names.UNIQ_KEY, "")
        return self.topic, text.removeprefix(f"{self.topic}+")

    @property
    def counted_topic(self) -> str | None:
        """The topic in whose count it is included; None for a recall."""
        return None if self.is_delete else self.topic

    def unit(self, choice: SlotChoice, now_ms: int) -> TimerUnit:
        """Return its unit for the timer log, with no previous unit."""
        kind = KIND_DEFAULT | KIND_DELETE if self.is_delete else KIND_DEFAULT
        header, topic_hash = self.header, java_string_hash(self.topic)
        place = (header.physical_offset, header.total_size)
        return unit_of(place, topic_hash, self.due_at_ms, choice, now_ms, kind)


def unit_of(
    place: tuple[int, int],
    topic_hash: int,
    due_at_ms: int,
    choice: SlotChoice,
    now_ms: int,
    kind: int = KIND_DEFAULT,
) -> TimerUnit:
    """Return the unit of a message for the timer log, with no previous unit.

    Args:
        place: the log position and the size of its record.
        topic_hash: Java's hash of its target topic.
        due_at_ms: its exact time, epoch milliseconds.
        choice: its slot.
        now_ms: the current time.
        kind: of the unit.
    """
    slot_at_ms = choice.second * PRECISION_MS
    written_at_ms = now_ms // PRECISION_MS * PRECISION_MS
    if abs(slot_at_ms - written_at_ms) > _DELAY_MS_MAX:  # the clock was changed
        written_at_ms = slot_at_ms
    return TimerUnit(
        -1,
        kind,
        written_at_ms,
        slot_at_ms - written_at_ms,
        *place,
        topic_hash,
        choice.roll_at_ms if choice.is_roll else due_at_ms,
    )


def read_timer_record(record: bytes) -> TimerRecord:
    """Decode and verify a record of the timer topic.

    Raises:
        MalformedMessageError: the record is damaged or of another topic, has no valid time or
            queue, or its target is a topic of the broker itself.
    """
    header = read_checked(record, 0)
    properties = decode_properties(header.properties(record))
    time = properties.get(names.TIMER_OUT_MS, "")
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    if (
        header.topic != TIMER_TOPIC
        or topic in _INVALID_TARGETS
        or not is_decimal(queue_id, INT_DIGITS)
        or not is_time(time)
    ):
        raise MalformedMessageError(
            f"invalid timer record at physical offset {header.physical_offset}: topic "
            f"{header.topic}, time {time[:40]!r}, target topic {topic!r}, target queue "
            f"{queue_id[:40]!r}"
        )
    due_at_ms = due_ms_of(properties)
    assert due_at_ms is not None, "it is a time"
    return TimerRecord(header, record, properties, int(time), due_at_ms, topic, int(queue_id))


def due_ms_of(properties: Mapping[str, str]) -> int | None:
    """Return the exact due time of a message of the timer topic; None if it has none."""
    time, deliver_at = (
        properties.get(names.TIMER_OUT_MS, ""),
        properties.get(names.TIMER_DELIVER_MS, ""),
    )
    if not is_time(time):
        return None
    # Java may leave a TIMER_DELIVER_MS that TIMER_DELAY_SEC overruled: `exact_due_ms` ignores it.
    return exact_due_ms(int(time), int(deliver_at) if is_time(deliver_at) else 0)


def is_time(text: str) -> bool:
    """Return whether a property's text is a time in epoch milliseconds."""
    return is_decimal(text, _TIME_DIGITS_MAX)


def due_timer_draft(
    timer: TimerRecord, now_ms: int, enqueued_at_ms: int, *, is_roll: bool
) -> tuple[RecordDraft, DeliveryKey]:
    """Return the message to store when the slot is due, and the key of this delivery.

    The message keeps its properties, and gets the times at which it was put into the wheel and
    taken out, if there is room for these. A rolled message goes to the timer topic again, with its
    number of rolls.
    """
    header, properties = timer.header, dict(timer.properties)
    properties.pop(names.CRC32, None)
    properties[names.TIMER_ENQUEUE_MS] = str(enqueued_at_ms)
    properties[names.TIMER_DEQUEUE_MS] = str(now_ms)
    topic, queue_id = timer.topic, timer.queue_id
    if is_roll:
        properties[names.TIMER_ROLL_TIMES] = _next_roll(properties)
        topic, queue_id = TIMER_TOPIC, 0
    text = encode_fitting_properties(properties, is_pending=is_roll)
    draft = draft_from_record(timer.record, header, topic, queue_id, text)
    return draft, delivery_key(topic, properties)


def rolls_still_waiting(
    delivered: Counter[DeliveryKey], read_at_ms: int
) -> tuple[Counter[DeliveryKey], int]:
    """Return the rolls of messages that are not due yet among deliveries, and the latest due time.

    Such a message may wait in the wheel twice: as it was sent, and as it was rolled.
    """
    rolled = {key: int(key[2]) for key in delivered if key[0] == TIMER_TOPIC and is_time(key[2])}
    left = {key: delivered[key] for key, at_ms in rolled.items() if at_ms >= read_at_ms}
    return Counter(left), max((rolled[key] + PRECISION_MS for key in left), default=0)


def other_delivery_key(timer: TimerRecord, *, is_roll: bool) -> DeliveryKey:
    """Return the key of the delivery if the message was rolled instead of delivered, or reversed.

    A kill may lie between the two: a message that was rolled is taken from the timer topic again,
    and its time may be over by now.
    """
    if is_roll:
        return delivery_key(timer.topic, timer.properties)
    rolled = {**timer.properties, names.TIMER_ROLL_TIMES: _next_roll(timer.properties)}
    return delivery_key(TIMER_TOPIC, rolled)


def _next_roll(properties: Mapping[str, str]) -> str:
    times = properties.get(names.TIMER_ROLL_TIMES, "0")
    return str(int(times) + 1 if is_time(times) else 1)
