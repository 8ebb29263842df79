"""Delivered delayed messages: their records, and their recovery after a kill.

The record for consumers is built from the delayed record by `due_draft`, the reverse of
`placement.place`.

The saved progress is older than the last deliveries, by up to `flushDelayOffsetInterval`. The
deliveries are in the commit log: records whose properties name their own queue as the destination
of a delayed message. RocketMQ delivers these messages again after each kill, including those that
consumers sent back.

Neither the present topics nor their queues matter: a topic may be missing at the start that a kill
interrupted in its creation, after messages had been delivered to it.

A level delivers in order. So its progress moves over the messages at its head whose delivery is
found. One without a delivery was skipped if a later message was delivered: its topic did not exist,
or it has no unique id and cannot be identified. The search for a later delivery is long only if the
message has no valid destination, or is older than all records of its topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kourou.broker.topics import Topics
from kourou.broker.writing.put import DeliveryQueue
from kourou.decimals import INT_DIGITS, is_decimal
from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.topic import SCHEDULE_TOPIC, TOPIC_LENGTH_MAX
from kourou.protocol.record.encode import RecordDraft, draft_from_record
from kourou.protocol.record.layout import RecordHeader
from kourou.protocol.record.read import read_record
from kourou.store.log.property_search import is_set_aside, position_before, records_with_property
from kourou.store.message_store import MessageStore


def due_draft(record: bytes, delivery_queue_of: DeliveryQueue) -> RecordDraft:
    """Return the record draft of a delayed message for its destination queue.

    As in Java all fields are kept, including the properties of the delay; only topic and queue are
    replaced by the destination. A scheduled message that was set aside loses the properties of its
    removal from the timer wheel, which its previous record keeps.

    Args:
        record: a record of SCHEDULE_TOPIC.
        delivery_queue_of: finds the queue.

    Raises:
        MalformedMessageError: it is not a record, has no valid destination, or its topic does not
            exist or is reserved for the broker.
    """
    header = read_record(record, check_crc=True)
    text = header.properties(record)
    properties = decode_properties(text)
    topic, delivery_queue = (
        properties.get(names.REAL_TOPIC, ""),
        _queue(properties, delivery_queue_of),
    )
    if delivery_queue is None:
        raise MalformedMessageError(
            f"delayed record at byte {header.physical_offset} is for queue "
            f"{properties.get(names.REAL_QID, '')[:40]!r} of topic {topic[:TOPIC_LENGTH_MAX]!r}, "
            "which does not exist or is reserved for the broker"
        )
    if is_set_aside(header) and names.TIMER_DEQUEUE_MS in properties:
        for name in (names.CRC32, names.TIMER_DEQUEUE_MS, names.TIMER_ENQUEUE_MS):
            properties.pop(name, None)
        text = encode_properties(properties)
    return draft_from_record(record, header, topic, delivery_queue, text)


def _queue(properties: Mapping[str, str], delivery_queue_of: DeliveryQueue) -> int | None:
    """Return the destination queue of a delayed message; None if it has no valid destination."""
    queue_id = properties.get(names.REAL_QID, "")
    if not is_decimal(queue_id, INT_DIGITS):
        return None
    return delivery_queue_of(properties.get(names.REAL_TOPIC, ""), int(queue_id))


IN_PROGRESS_MS: Final = 10_000
"""Longest time by which a delivery can precede a saved progress that does not count it."""

EARLY_MS: Final = 60_000
"""Time by which a message may have been delivered before it was due, because the clock was set back
while it waited. A longer time is seen only while the message is due later than its level's delay
allows."""

DOUBTS_MAX: Final = 64
"""Limit on messages without a delivery behind which a later delivery is searched for, although
their topic exists and had records before them."""

SENT_BEFORE_MAX: Final = 1_000
"""Number of messages before the progress that may be first sends of later ones."""


class _Key(NamedTuple):
    """Identity of a delayed message and its delivery; equal for two sends of one message.

    Each time that a consumer sends the message back, its reconsume times increase. A message that
    was set aside has the same key as its previous record, and a higher log position.

    Attributes:
        topic, queue_id: the destination.
    """

    topic: str
    queue_id: str
    unique_id: str
    reconsume_times: int
    born_at_ms: int


_Deliveries = Mapping[_Key, list[int]]
"""Log positions of deliveries, ascending."""


def find_delivered(
    topics: Topics,
    store: MessageStore,
    disk: Disk,
    segment_bytes: int,
    heads: Mapping[int, int],
    noted_at_ms: int,
    now_ms: int,
    last_store_at_ms: int,
    delay_levels_ms: Sequence[int],
) -> dict[int, int]:
    """Return the real progress of levels: queue of SCHEDULE_TOPIC -> queue offset.

    Runs on any thread, before the first delivery. It reads the log from the first message that may
    have been delivered, but not parts much older than the file.

    Args:
        topics: the existing topics.
        store: gives the queues.
        disk: holds the commit log.
        segment_bytes: size of the log's files.
        heads: saved progress of each level.
        noted_at_ms: time at which the file was written; 0 without a file.
        now_ms: messages due `EARLY_MS` later than this and than `last_store_at_ms` have not been
            delivered, except those due later than their level's delay allows: for these the clock
            was set back.
        last_store_at_ms: store time of the last record, by a clock that may have been ahead.
        delay_levels_ms: delay of each level, by queue.

    Raises:
        OSError: the log cannot be read.
    """
    positions: dict[int, int] = {}
    for queue_id, offset in heads.items():
        entry = store.reader.entry(SCHEDULE_TOPIC, queue_id, offset)
        if entry is None:
            continue
        is_near = entry.tags_code <= max(now_ms, last_store_at_ms) + EARLY_MS
        if is_near or entry.tags_code - now_ms > delay_levels_ms[queue_id]:
            positions[queue_id] = entry.physical_offset
    if not positions:
        return {}
    since = position_before(disk, segment_bytes, noted_at_ms - IN_PROGRESS_MS)
    deliveries = _delivered(disk, segment_bytes, max(since, min(positions.values())))
    return {
        queue_id: _passed(topics, store, queue_id, heads[queue_id], deliveries)
        for queue_id in positions
    }


def _delivered(disk: Disk, segment_bytes: int, start: int) -> _Deliveries:
    """Return the deliveries in the log from position `start` on."""
    found: defaultdict[_Key, list[int]] = defaultdict(list)
    for header, text in records_with_property(disk, segment_bytes, start, names.REAL_TOPIC):
        properties = decode_properties(text)
        # A record set aside counts as a delivery by its level; not so if set aside by the timer.
        is_delivery = is_set_aside(header) and names.TIMER_DEQUEUE_MS not in properties
        # Otherwise it may be a dead letter, or still wait.
        if is_delivery or properties.get(names.REAL_TOPIC, "") == header.topic:
            found[_key(header, properties)].append(header.physical_offset)
    return found


def _key(header: RecordHeader, properties: Mapping[str, str]) -> _Key:
    """Return the key of a delayed record, or of its delivery, which keeps these properties."""
    return _Key(
        properties.get(names.REAL_TOPIC, ""),
        properties.get(names.REAL_QID, ""),
        properties.get(names.UNIQ_KEY, ""),
        header.reconsume_times,
        header.born_at_ms,
    )


def _passed(
    topics: Topics, store: MessageStore, queue_id: int, offset: int, deliveries: _Deliveries
) -> int:
    """Return the level's first queue offset from `offset` on that was not delivered.

    Only records with a higher log position can be deliveries of a message. Behind a message without
    a delivery, one that was sent twice is not taken for delivered because its first send was.
    """
    start = passed = offset
    doubts = 0
    sent_before: dict[_Key, set[int]] | None = None
    first_positions: dict[str, int] = {}
    while (waiting := _waiting(store, queue_id, offset)) is not None:
        offset += 1
        key = waiting.key
        positions = deliveries.get(key, []) if key.unique_id else []
        index = bisect_right(positions, waiting.header.physical_offset)
        others = sent_before.get(key, set()) - {waiting.origin} if sent_before else None
        if index < len(positions) and not others:
            del positions[index]
            passed, doubts = offset, 0
            continue
        if sent_before is None:
            sent_before = _sent_before(store, queue_id, start)
        if key.topic not in first_positions:
            first_positions[key.topic] = store.reader.first_position(key.topic)
        was_in_topic = first_positions[key.topic] <= waiting.header.physical_offset
        if was_in_topic and _queue(waiting.properties, topics.delivery_queue) is not None:
            doubts += 1
            if doubts > DOUBTS_MAX:
                return passed
    return passed


class _Waiting(NamedTuple):
    """A message of a level."""

    header: RecordHeader
    properties: dict[str, str]

    @property
    def key(self) -> _Key:
        return _key(self.header, self.properties)

    @property
    def origin(self) -> int:
        """The log position of its first record, before it was set aside."""
        is_first = not is_set_aside(self.header)
        header = self.header
        return header.physical_offset if is_first else header.prepared_transaction_offset - 1


def _waiting(store: MessageStore, queue_id: int, offset: int) -> _Waiting | None:
    """Return a message of a level; None if its record cannot be read."""
    entry = store.reader.entry(SCHEDULE_TOPIC, queue_id, offset)
    record = None if entry is None else store.reader.read_record(entry.physical_offset)
    if record is None:
        return None
    header = read_record(record, check_crc=False)
    return _Waiting(header, decode_properties(header.properties(record)))


def _sent_before(store: MessageStore, queue_id: int, offset: int) -> dict[_Key, set[int]]:
    """Return the origins of a level's last messages before `offset`, by key."""
    found: defaultdict[_Key, set[int]] = defaultdict(set)
    for earlier in range(max(0, offset - SENT_BEFORE_MAX), offset):
        waiting = _waiting(store, queue_id, earlier)
        if waiting is not None:
            found[waiting.key].add(waiting.origin)
    return found
