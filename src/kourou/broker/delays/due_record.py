"""Conversion of a delayed record that is due into the record for its consumers.

The reverse of `placement.place`.

Source: ScheduleMessageService.messageTimeUp, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.topics import Topics
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.topic import TOPIC_LENGTH_MAX
from kourou.protocol.record.encode import RecordDraft, draft_from_record
from kourou.protocol.record.read import read_record
from kourou.store.log.property_search import is_set_aside

_QUEUE_DIGITS_MAX: Final = 9


def due_draft(record: bytes, topics: Topics) -> RecordDraft:
    """Return the record draft of a delayed message for its destination queue.

    As in Java all fields are kept, including the properties of the delay; only topic and queue are
    replaced by the destination. A scheduled message that was set aside loses the properties of its
    removal from the timer wheel, which its previous record keeps.

    Args:
        record: a record of SCHEDULE_TOPIC.
        topics: the existing topics.

    Raises:
        MalformedMessageError: it is not a record, has no valid destination, or its topic does not
            exist or is reserved for the broker.
    """
    header = read_record(record, check_crc=True)
    text = header.properties(record)
    properties = decode_properties(text)
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    delivery_queue = None
    if queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _QUEUE_DIGITS_MAX:
        delivery_queue = topics.delivery_queue(topic, int(queue_id))
    if delivery_queue is None:
        raise MalformedMessageError(
            f"delayed record at byte {header.physical_offset} is for queue {queue_id[:40]!r} of "
            f"topic {topic[:TOPIC_LENGTH_MAX]!r}, which does not exist or is reserved for the "
            "broker"
        )
    if is_set_aside(header) and names.TIMER_DEQUEUE_MS in properties:
        for name in (names.CRC32, names.TIMER_DEQUEUE_MS, names.TIMER_ENQUEUE_MS):
            properties.pop(name, None)
        text = encode_properties(properties)
    return draft_from_record(record, header, topic, delivery_queue, text)
