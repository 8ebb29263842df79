"""A delayed message whose time has come, as it is stored for its consumers.

The way there is `placement.place`.

Source: ScheduleMessageService.messageTimeUp, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.topics import Topics
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.topic import TOPIC_LENGTH_MAX
from kourou.protocol.message_layout import RecordDraft, read_record, redraft
from kourou.store.log.marked_records import is_set_aside

_QUEUE_DIGITS_MAX: Final = 9


def due_draft(record: bytes, topics: Topics) -> RecordDraft:
    """Return the message of a delayed record as it is to be stored for its consumers.

    Everything stays as it is, the properties that tell of the delay too, as with Java; only topic
    and queue become those that it was sent to. A timer that was set aside does not say any more
    that it was taken out of the wheel: the record that waited says so.

    Args:
        record: of SCHEDULE_TOPIC.
        topics: those that there are now.

    Raises:
        MalformedMessageError: it is no record, does not say where it goes, or names a topic that
            does not exist, or that the broker alone writes.
    """
    header = read_record(record, check_crc=True)
    text = record[header.properties_start : header.properties_start + header.properties_size]
    properties = decode_properties(text)
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    deliver_to = None
    if queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _QUEUE_DIGITS_MAX:
        deliver_to = topics.delivery_queue(topic, int(queue_id))
    if deliver_to is None:
        raise MalformedMessageError(
            f"delayed record at byte {header.physical_offset} goes to queue {queue_id[:40]!r} of "
            f"topic {topic[:TOPIC_LENGTH_MAX]!r}: no such topic is open to deliveries"
        )
    if is_set_aside(header) and names.TIMER_DEQUEUE_MS in properties:
        for name in (names.CRC32, names.TIMER_DEQUEUE_MS, names.TIMER_ENQUEUE_MS):
            properties.pop(name, None)
        text = encode_properties(properties)
    return redraft(record, header, topic, deliver_to, text)
