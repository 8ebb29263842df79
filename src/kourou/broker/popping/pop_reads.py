"""Reads of one queue for a pop: the messages, their queue offsets, and the offset after them."""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.broker.live_config import LiveConfig
from kourou.broker.popping.pop_filters import PopFilter
from kourou.broker.pulling.filtered_reads import FilteredReads
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.model.properties import ORIGIN_GROUP, decode_properties
from kourou.protocol.record.layout import head_struct
from kourou.protocol.record.read import read_record
from kourou.protocol.record.scan import split_records
from kourou.store.message_store import FastGetResult, GetRequest, GetResult, GetStatus, MessageStore

_HEAD: Final = head_struct("total_size", "queue_offset")
_WRONG_OFFSET: Final = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
    }
)


class QueueRead(NamedTuple):
    """The result of a read.

    Attributes:
        offsets: the queue offset of each message; empty if nothing matched.
        body: the stored records, one after another.
        next_offset: the offset of the next read.
        max_offset: the offset after the queue's last message.
        is_wrong_offset: the read began outside the queue, and must be repeated at `next_offset`.
    """

    offsets: tuple[int, ...]
    body: bytes
    next_offset: int
    max_offset: int
    is_wrong_offset: bool = False


class ReadPlace(NamedTuple):
    """A queue, and the offset at which a read begins."""

    topic: str
    queue_id: int
    offset: int


class PopReads:
    """Reads queues of one store for pops."""

    def __init__(self, store: MessageStore, reads: VerifiedReads, config: LiveConfig) -> None:
        self._reader = store.reader
        self._reads = reads
        self._filtered = FilteredReads(reads)
        self._config = config

    def read_resident(
        self, place: ReadPlace, count: int, pop_filter: PopFilter | None
    ) -> QueueRead | None:
        """Read at most `count` messages; None if they must be read from the disk."""
        topic, queue_id, offset = place
        bytes_max = self._config.current.pull_bytes_max
        if pop_filter is None:
            fast = self._reader.get_fast(topic, queue_id, offset, count, bytes_max)
            if fast is not None:
                return _from_fast(offset, fast)
        get_request = _get_request(place, count, bytes_max, pop_filter)
        if pop_filter is None or pop_filter.by_properties is None:
            found = self._reads.read_resident(topic, queue_id, get_request)
        else:
            message_filter = pop_filter.by_properties
            found = self._filtered.read_resident(topic, queue_id, get_request, message_filter)
        return None if found is None else _from_result(found)

    async def read(self, place: ReadPlace, count: int, pop_filter: PopFilter | None) -> QueueRead:
        """Read at most `count` messages from memory or disk.

        Raises:
            DamagedRecordError, CorruptRecordError, OSError: as `VerifiedReads.read`.
        """
        topic, queue_id, _ = place
        bytes_max = self._config.current.pull_bytes_max
        get_request = _get_request(place, count, bytes_max, pop_filter)
        if pop_filter is None or pop_filter.by_properties is None:
            return _from_result(await self._reads.read(topic, queue_id, get_request))
        message_filter = pop_filter.by_properties
        return _from_result(await self._filtered.read(topic, queue_id, get_request, message_filter))


def without_other_groups(read: QueueRead, group: str) -> QueueRead:
    """Return the read of a retry topic without the messages of other groups.

    `%RETRY%a_b_c` is the retry topic of group `a` for topic `b_c` and of group `a_b` for `c`.
    """
    offsets, parts = [], []
    for offset, record in zip(read.offsets, split_records(read.body), strict=True):
        header = read_record(record, check_crc=False)
        owner = decode_properties(header.properties(record)).get(ORIGIN_GROUP, group)
        if owner == group:
            offsets.append(offset)
            parts.append(record)
    if len(offsets) == len(read.offsets):
        return read
    return read._replace(offsets=tuple(offsets), body=b"".join(parts))


def _get_request(
    place: ReadPlace, count: int, bytes_max: int, pop_filter: PopFilter | None
) -> GetRequest:
    accepts = None if pop_filter is None else pop_filter.accepts
    return GetRequest(place.offset, count, bytes_max, accepts)


def _from_fast(offset: int, found: FastGetResult) -> QueueRead:
    next_offset = found.next_offset
    body = b"".join(found.records)
    return QueueRead(tuple(range(offset, next_offset)), body, next_offset, found.max_offset)


def _from_result(found: GetResult) -> QueueRead:
    plan, body = found.plan, found.body
    offsets = []
    at = 0
    while at < len(body):
        size, queue_offset = _HEAD.unpack_from(body, at)
        offsets.append(queue_offset)
        at += size
    return QueueRead(
        tuple(offsets), body, plan.next_offset, plan.max_offset, plan.status in _WRONG_OFFSET
    )
