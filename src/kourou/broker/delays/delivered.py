"""Which delayed messages a broker had delivered before it was killed.

The file of the progress is older than the last deliveries, by `flushDelayOffsetInterval`. They are
in the commit log: records in the queue that their own properties name as the one they waited for.
RocketMQ delivers them once more each time that it is killed, and so whatever consumers gave back.

What a level delivers, it delivers in its order: its progress goes on over the messages at its head
whose delivery is found, up to the first that was not delivered. A message without a unique id is
not told from others: it counts as not delivered. A message that was sent to an earlier topic of the
same name may have been passed over while there was no topic: it counts as passed over if a message
behind it was delivered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from kourou.broker.delays.due_record import due_draft
from kourou.broker.topics import Topics
from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.store.log.marked_records import is_set_aside, marked_records, stored_before
from kourou.store.message_store import MessageStore

UNDER_WAY_MS: Final = 10_000
"""How long before the progress was noted a delivery can have been stored that it does not count."""

_Key = tuple[str, int, str, int, int]
"""Topic, queue, unique id, reconsume times, when it was born: equal for two sends of one message.
One that waits again, as a consumer gave it back again, was given back once more often. One that was
set aside has the key of the record that waited before, and lies behind it in the log."""

_Found = Mapping[_Key, list[int]]
"""Where the log holds deliveries, ascending."""


def find_delivered(
    topics: Topics,
    store: MessageStore,
    disk: Disk,
    segment_bytes: int,
    heads: Mapping[int, int],
    noted_at_ms: int,
    now_ms: int,
    delay_levels_ms: Sequence[int],
) -> dict[int, int]:
    """Return how far the levels really are: queue of SCHEDULE_TOPIC -> queue offset.

    On any thread, before the first delivery. Reads the log from the first message on that may have
    been delivered, but not what is older than the file by far.

    Args:
        topics: those that messages are delivered to.
        store: the queues.
        disk: the commit log.
        segment_bytes: of its files.
        heads: where each level is by the file.
        noted_at_ms: when the file was written; 0 if there is none.
        now_ms: what is due later was not delivered, unless it is due later than its level allows:
            the clock was set back.
        delay_levels_ms: how long each level waits, by queue.

    Raises:
        OSError: the log cannot be read.
    """
    places: dict[int, int] = {}
    for queue_id, offset in heads.items():
        entry = store.entry(SCHEDULE_TOPIC, queue_id, offset)
        if entry is None:
            continue
        wait_ms = entry.tags_code - now_ms
        if wait_ms <= 0 or wait_ms > delay_levels_ms[queue_id]:
            places[queue_id] = entry.physical_offset
    if not places:
        return {}
    since = stored_before(disk, segment_bytes, noted_at_ms - UNDER_WAY_MS)
    known = _delivered(disk, segment_bytes, max(since, min(places.values())))
    return {
        queue_id: _passed(topics, store, queue_id, heads[queue_id], known) for queue_id in places
    }


def _delivered(disk: Disk, segment_bytes: int, start: int) -> _Found:
    """Return what the log holds of deliveries from byte `start` on."""
    found: defaultdict[_Key, list[int]] = defaultdict(list)
    for header, text in marked_records(disk, segment_bytes, start, names.REAL_TOPIC):
        properties = decode_properties(text)
        topic, queue_id = header.topic, header.queue_id
        goes_to = properties.get(names.REAL_TOPIC, "")
        # What was set aside left its level; a timer left the wheel.
        if is_set_aside(header) and names.TIMER_DEQUEUE_MS not in properties:
            topic, queue_id = goes_to, int(properties.get(names.REAL_QID, "0"))
        if goes_to == topic:  # no dead letter, nor one that waits
            unique_id = properties.get(names.UNIQ_KEY, "")
            times, born_at_ms = header.reconsume_times, header.born_at_ms
            key = topic, queue_id, unique_id, times, born_at_ms
            found[key].append(header.physical_offset)
    return found


def _passed(topics: Topics, store: MessageStore, queue_id: int, offset: int, known: _Found) -> int:
    """Return the first queue offset of the level, from one on, that was not delivered.

    What lies before a record in the log, or is that record, is no delivery of it.
    """
    passed = offset
    while True:
        entry = store.entry(SCHEDULE_TOPIC, queue_id, offset)
        record = None if entry is None else store.read_record(entry.physical_offset)
        if entry is None or record is None:
            return passed
        offset += 1
        try:
            draft = due_draft(record, topics)
        except MalformedMessageError:
            continue  # nothing to deliver: those behind it tell whether it was passed over
        unique_id = decode_properties(draft.properties).get(names.UNIQ_KEY)
        times, born_at_ms = draft.reconsume_times, draft.born_at_ms
        topic = draft.topic.decode()
        key = topic, draft.queue_id, unique_id or "", times, born_at_ms
        places = known.get(key, [])
        behind = bisect_right(places, entry.physical_offset)
        if unique_id and behind < len(places):
            del places[behind]
            passed = offset
        elif entry.physical_offset >= store.topic_begin(topic):
            return passed
