"""A delayed message whose time has come, as it is stored for its consumers.

The way there is `placement.place`.

Source: ScheduleMessageService.messageTimeUp, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.topic import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.message_layout import RecordDraft, read_record, redraft
from kourou.store.log.marked_records import is_set_aside


def due_draft(record: bytes) -> RecordDraft:
    """Return the message of a delayed record as it is to be stored for its consumers.

    Everything stays as it is, the properties that tell of the delay too, as with Java; only topic
    and queue become those that it was sent to. A timer that was set aside does not say any more
    that it was taken out of the wheel: the record that waited says so.

    Raises:
        MalformedMessageError: it is no record, does not say where it goes, or names a topic that
            nothing is delivered to.
    """
    header = read_record(record, check_crc=True)
    text = record[header.properties_start : header.properties_start + header.properties_size]
    properties = decode_properties(text)
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    if not topic or topic in (TRANS_HALF_TOPIC, SCHEDULE_TOPIC) or not queue_id.isdecimal():
        raise MalformedMessageError(
            f"delayed record at byte {header.physical_offset} goes to queue {queue_id!r} of "
            f"topic {topic!r}"
        )
    if is_set_aside(header) and names.TIMER_DEQUEUE_MS in properties:
        for name in (names.CRC32, names.TIMER_DEQUEUE_MS, names.TIMER_ENQUEUE_MS):
            properties.pop(name, None)
        text = encode_properties(properties)
    return redraft(record, header, topic, int(queue_id), text)
