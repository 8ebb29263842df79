"""Fast path of reads: returns consecutive messages of a queue, without a filter, from memory.

It selects the same messages as `get_plan.plan_get`, but processes all entries together: about 4 us
for 32, instead of 8 one by one. Records that may have left memory since this process wrote them, or
that existed before it, are verified as on the general path, at 2 us a record, unless they were
verified recently. In any other case it returns None, and the general path
(`verified_get.get_resident`) answers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from kourou.protocol.record.check import ExpectedRecord, RecordCheck
from kourou.protocol.record.check_columns import ColumnCheck, EntryColumns
from kourou.store.config import BELIEVED_BYTES
from kourou.store.formats import ENTRY_BYTES
from kourou.store.log.commitlog import CommitLog
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.simple_queue import SimpleQueue
from kourou.store.reading.entry_cache import EntryCache
from kourou.store.reading.get_plan import get_bytes_max
from kourou.store.reading.verified_ranges import VerifiedRanges

_COUNT_MAX: Final = 64
_SPAN_MAX: Final = 1 << 20
"""The most bytes of the log from the first record to the last. For records further apart, each page
would have to be checked for residency."""


class FastGetResult(NamedTuple):
    """The result of a read on the fast path.

    Attributes:
        next_offset: the offset after the last message.
        min_offset: the queue's minimum offset.
        max_offset: the offset after the queue's last message.
        records: views of the records, some in the page cache: to be copied at once, not stored.
        size: the total size of the records.
    """

    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview]
    size: int


@lru_cache(_COUNT_MAX)
def _entries(count: int) -> struct.Struct:
    """Return the layout of `count` queue entries: position and size of each, without its code."""
    return struct.Struct(">" + "qi8x" * count)


@lru_cache(_COUNT_MAX)
def _codes(count: int) -> struct.Struct:
    """Return the layout of `count` queue entries: the tags code of each."""
    return struct.Struct(">" + "12xq" * count)


class FastGet:
    """The fast path of one store; caches queue entries and verified ranges.

    Must run on the store's thread. All of the log must count as in memory
    (`StoreConfig.resident_bytes` is 0).

    Args:
        log: the store's commit log.
        delay_levels_ms: see `RecordCheck`.
        believed_bytes: see `ReadContext`.
    """

    def __init__(
        self,
        log: CommitLog,
        delay_levels_ms: Sequence[int],
        *,
        believed_bytes: int = BELIEVED_BYTES,
    ) -> None:
        self._log = log
        self._delay_levels_ms = delay_levels_ms
        self._believed_bytes = believed_bytes
        self._entry_cache = EntryCache()
        self._verified = VerifiedRanges(believed_bytes)
        self._check = ColumnCheck()

    def get(
        self, queue: ConsumeQueue | None, offset: int, max_messages: int, max_bytes: int
    ) -> FastGetResult | None:
        """Return the messages from the offset; None if the general path must answer."""
        if type(queue) is not SimpleQueue:
            return None
        low, high = queue.min_offset, queue.max_offset  # entries are in the log's order
        per_file = queue.segments.file_bytes // ENTRY_BYTES
        count = min(max_messages, high - offset, per_file - offset % per_file)
        if not 0 < count <= _COUNT_MAX or offset < low:
            return None
        try:
            block = self._entry_cache.read(queue, offset, count)
            found = None if block is None else self._read(queue, offset, count, block, max_bytes)
        except OSError:  # the general path meets the error as well, and reports it
            found = None
        if found is None:
            self._entry_cache.drop(queue)  # a corrupt entry will be repaired in its file
            return None
        return FastGetResult(offset + count, low, high, *found)

    def _read(
        self,
        queue: SimpleQueue,
        offset: int,
        count: int,
        block: tuple[bytes, int],
        max_bytes: int,
    ) -> tuple[list[memoryview], int] | None:
        """Return the records of the entries in a block, and their total size."""
        fields = _entries(count).unpack_from(*block)
        positions, sizes = fields[::2], fields[1::2]
        size = sum(sizes)
        if size > get_bytes_max(max_bytes):
            return None
        records = _records(self._log, positions, sizes, size)
        if records is None:
            return None
        written, end = self._log.written_position, offset + count
        if offset >= queue.unverified_below and positions[0] >= written - self._believed_bytes:
            return records, size
        if not self._verified.covers(queue, offset, end, written):
            body = b"".join(records)
            codes = _codes(count).unpack_from(*block)
            columns = EntryColumns(tuple(range(offset, end)), positions, sizes, codes)
            if not self._are_valid(queue, columns, body):
                return None
            self._verified.add(queue, offset, end, written, size)
            records = [memoryview(body)]  # the verified copy, in case the page changes
        return records, size

    def _are_valid(self, queue: SimpleQueue, columns: EntryColumns, body: bytes) -> bool:
        """Verify that each record is the one to which its entry refers."""
        topic, queue_id = queue.topic, queue.queue_id
        if self._check.is_certain(topic, queue_id, columns, body):
            return True
        check = RecordCheck(topic, queue_id, self._delay_levels_ms)
        return check.first_wrong(body, list(map(ExpectedRecord, *columns))) is None


def _records(
    log: CommitLog, positions: tuple[int, ...], sizes: tuple[int, ...], size: int
) -> list[memoryview] | None:
    """Return views of records of `size` bytes in all; None if they are not close and in memory."""
    first = positions[0]
    span = positions[-1] + sizes[-1] - first
    end = min(log.written_position, log.segment_end(first))
    if first < log.min_position or not size <= span <= _SPAN_MAX or first + span > end:
        return None
    view = log.view_resident(first, span)
    if view is None:
        return None
    if size == span:  # the records are adjacent
        return [view]
    return [
        view[at - first : at - first + length] for at, length in zip(positions, sizes, strict=True)
    ]
