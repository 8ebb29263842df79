"""Recovery of the revivals of a killed Java broker: messages that it has stored in a retry topic.

Java saves the offsets of the revive queues every few seconds. The checkpoints behind them would be
revived once more, also messages that were acknowledged after their revival. Java's record of a
revived message does not name the checkpoint; it is recognized by the unique id of the message, its
group and its number of deliveries.

Source: PopReviveService.reviveRetry, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kourou.broker.popping.checkpoint import (
    CheckpointKey,
    PopCheckpoint,
    checkpoint_of,
    is_relayed,
)
from kourou.broker.popping.java_checkpoints import queue_records
from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model.properties import ORIGIN_GROUP, POP_LOG_END, TAGS, UNIQ_KEY, decode_properties
from kourou.model.topic import is_retry_topic
from kourou.protocol.popping.revive_records import CHECKPOINT_TAG, decode_checkpoint
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.protocol.record.layout import RecordHeader
from kourou.protocol.record.read import read_record
from kourou.store.reader import StoreReader

ReviveQueue = tuple[str, int]
"""A revive topic and a queue of it."""


class _Due(NamedTuple):
    """A checkpoint of Java in the revive topic."""

    checkpoint: PopCheckpoint
    position: int
    stored_at_ms: int


class _Delivery(NamedTuple):
    """Identity of a revived message.

    Attributes:
        group: the group of the pop.
        unique_id: of the message.
        reconsume_times: its number of deliveries, as stored.
    """

    group: str
    unique_id: str
    reconsume_times: int


def find_java_revivals(
    reader: StoreReader,
    next_offsets: Mapping[ReviveQueue, int],
    broker_name: str,
    *,
    is_java_last: bool,
) -> dict[CheckpointKey, set[int]]:
    """Return the queue offsets of revived messages by checkpoint; may wait for the device.

    Args:
        reader: reads the store.
        next_offsets: by revive queue: the offset of the first record that is not known to be
            handled.
        broker_name: of checkpoints that name none.
        is_java_last: whether the broker that was killed was Java's. If not, its checkpoints, if
            there are any, precede those of Kourou, which end the search.

    Raises:
        OSError: the log cannot be read.
    """
    due: list[_Due] = []
    for (topic, queue_id), offset in next_offsets.items():
        records = queue_records(reader, topic, queue_id, offset)
        due += _java_checkpoints(records, broker_name, is_java_last=is_java_last)
    if not due:
        return {}
    revived = _Revived(reader, min(one.stored_at_ms for one in due))
    result: dict[CheckpointKey, set[int]] = {}
    for one in due:
        offsets = revived.take(one)
        if offsets:
            result.setdefault(one.checkpoint.key, set()).update(offsets)
    return result


class _Revived:
    """The records of retry topics that were stored since a time; each is used once."""

    def __init__(self, reader: StoreReader, since_ms: int) -> None:
        self._reader = reader
        self._since_ms = since_ms
        self._queues = reader.queues()
        self._by_topic: dict[str, dict[_Delivery, list[int]]] = {}

    def take(self, due: _Due) -> list[int]:
        """Return the offsets of the checkpoint's messages that were stored after it."""
        key = due.checkpoint.key
        if is_retry_topic(key.topic):
            topics = [key.topic]
        else:
            topics = [retry_topic_v1(key.group, key.topic), retry_topic_v2(key.group, key.topic)]
        stored = [one for topic in topics if (one := self._of_topic(topic))]
        if not stored:
            return []
        return [
            offset
            for offset in due.checkpoint.unacked()
            if self._take_one(due, self._delivery(due, offset), stored)
        ]

    def _take_one(
        self,
        due: _Due,
        delivery: _Delivery | None,
        stored: list[dict[_Delivery, list[int]]],
    ) -> bool:
        if delivery is None:
            return False
        for positions in (one.get(delivery, []) for one in stored):
            for index, position in enumerate(positions):
                if position > due.position:
                    del positions[index]
                    return True
        return False

    def _delivery(self, due: _Due, offset: int) -> _Delivery | None:
        """Return the identity that the message at a queue offset has after its revival."""
        key = due.checkpoint.key
        entry = self._reader.entry(key.topic, key.queue_id, offset)
        record = None if entry is None else self._reader.read_record(entry.physical_offset)
        if record is None:
            return None  # expired or damaged
        header = read_record(record, check_crc=False)
        unique_id = decode_properties(header.properties(record)).get(UNIQ_KEY)
        if unique_id is None:
            return None
        times = header.reconsume_times + (not due.checkpoint.is_suspended)
        return _Delivery(key.group, unique_id, times)

    def _of_topic(self, topic: str) -> dict[_Delivery, list[int]]:
        """Return the positions of the topic's records in the log, ascending."""
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = defaultdict(list)
            for queue_id in self._queues.get(topic, ()):
                first = self._reader.offset_by_time(topic, queue_id, self._since_ms)
                for header, record in queue_records(self._reader, topic, queue_id, first):
                    properties = decode_properties(header.properties(record))
                    group, unique_id = properties.get(ORIGIN_GROUP), properties.get(UNIQ_KEY)
                    if group is not None and unique_id is not None:
                        delivery = _Delivery(group, unique_id, header.reconsume_times)
                        found[delivery].append(header.physical_offset)
            for positions in found.values():
                positions.sort()
        return found


def _java_checkpoints(
    records: Iterator[tuple[RecordHeader, bytes]], broker_name: str, *, is_java_last: bool
) -> Iterator[_Due]:
    """Yield the checkpoints in records of a revive queue that Java has stored."""
    for header, record in records:
        try:
            properties = decode_properties(header.properties(record))
            if properties.get(TAGS) != CHECKPOINT_TAG or is_relayed(properties):
                continue
            if POP_LOG_END in properties:
                if is_java_last:
                    continue
                return
            checkpoint = checkpoint_of(decode_checkpoint(header.body(record)), broker_name)
        except (MalformedBodyError, MalformedMessageError):
            continue  # the revive loop logs it
        yield _Due(checkpoint, header.physical_offset, header.store_at_ms)
