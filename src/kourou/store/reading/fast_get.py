"""Fast path of reads: returns consecutive messages of a queue, without a filter, from memory.

It selects the same messages as `get_plan.plan_get`, but processes all entries together: about 4 us
for 32, instead of 8 one by one. Records that may have left memory since this process wrote them, or
that existed before it, are verified as on the general path, at 2 us a record, unless they were
verified recently. In any other case it returns None, and the general path
(`verified_get.get_resident`) answers.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
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
from kourou.store.reading.get_plan import get_bytes_max

_COUNT_MAX: Final = 256
"""The most messages: readers of whole topics, such as Spark, pull that many at once."""
_SPAN_MAX: Final = 4 << 20
"""The most bytes of the log from the first record to the last, which one residency check covers."""
_BLOCK_ENTRIES: Final = 256
_BLOCKS_MAX: Final = 512
"""The most cached blocks, one a queue, 5 KB each; the least recently read is dropped first."""
_PARTS: Final = 16
"""A range is extended until one such part of `believed_bytes` was written or verified since its
begin, because a range expires as a whole."""
_RANGES_MAX: Final = 2 * _PARTS
"""The most ranges of one queue; the oldest is dropped first."""
_RANGE_QUEUES_MAX: Final = 1024
"""The most queues with ranges; those of the least recently verified queue are dropped first."""


class FastGetResult(NamedTuple):
    """The result of a read on the fast path.

    Attributes:
        next_offset: the offset after the last message.
        min_offset: the queue's minimum offset.
        max_offset: the offset after the queue's last message.
        records: views of the records, some in the page cache: to be copied at once, not stored.
        size: the total size of the records.
        log_end: the byte of the log at which the last record ends.
    """

    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview]
    size: int
    log_end: int


@lru_cache(_COUNT_MAX)
def _entries(count: int) -> struct.Struct:
    """Return the layout of `count` queue entries: position and size of each, without its code."""
    return struct.Struct(">" + "qi8x" * count)


@lru_cache(_COUNT_MAX)
def _codes(count: int) -> struct.Struct:
    """Return the layout of `count` queue entries: the tags code of each."""
    return struct.Struct(">" + "12xq" * count)


class EntryCache:
    """Reads queue entries from memory only; caches them for consumers that catch up.

    One read serves several pulls: a system call for 32 entries takes as long as one for 256, which
    is 5 to 8 us, a tenth of such a pull. Entries in files do not change, except a corrupt one that
    is repaired: a caller that finds an invalid entry must call `drop`.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[SimpleQueue, tuple[int, bytes]] = OrderedDict()

    def read(self, queue: SimpleQueue, offset: int, count: int) -> tuple[bytes, int] | None:
        """Return bytes that contain the entries, and the offset in them at which they begin.

        None if the read might wait, or the entries are not all in one file and the queue's tail.

        Raises:
            OSError: the queue's file cannot be read.
        """
        block = self._blocks.get(queue)
        if block is not None:
            start, data = block
            at = (offset - start) * ENTRY_BYTES
            if 0 <= at <= len(data) - count * ENTRY_BYTES:
                self._blocks.move_to_end(queue)
                return data, at
        if offset + count > queue.file_end:  # caught up: entries in the tail cost no system call
            return _if_complete(queue.read_resident(offset, count), count)
        found = _if_complete(queue.read_resident(offset, _BLOCK_ENTRIES), count)
        if found is None:
            return _if_complete(queue.read_resident(offset, count), count)
        self._blocks[queue] = (offset, found[0])
        if len(self._blocks) > _BLOCKS_MAX:
            self._blocks.popitem(last=False)
        return found

    def drop(self, queue: SimpleQueue) -> None:
        """Drop the queue's block, so that its entries are read again."""
        self._blocks.pop(queue, None)


def _if_complete(data: bytes | None, count: int) -> tuple[bytes, int] | None:
    if data is None or len(data) < count * ENTRY_BYTES:
        return None
    return data, 0


class _Range:
    """A range of verified offsets.

    Attributes:
        age_from: the bytes written and verified in all when its first message was verified.
    """

    __slots__ = ("age_from", "begin", "end")

    def __init__(self, begin: int, end: int, age_from: int) -> None:
        self.begin = begin
        self.end = end
        self.age_from = age_from


class VerifiedRanges:
    """The recently verified messages of all queues, so that the next reader need not verify them.

    Verification detects data that came back from the device corrupt, so the data must have left
    memory before. A record that was just verified is still in memory, like one that was just
    written, and is trusted for the same number of bytes, `believed_bytes` (see `verified_get`). For
    written records the bytes written since are counted; here the bytes verified since count as
    well, because reading them from the device may have evicted others. So groups that catch up
    together, or shortly after one another, pay for one verification. A group that comes later
    verifies again, because the records may have been read from the device again.

    The number of stored ranges is bounded.

    Args:
        believed_bytes: the bytes that may be written and verified until a range expires.
    """

    def __init__(self, believed_bytes: int) -> None:
        self._believed_bytes = believed_bytes
        self._verified_bytes = 0
        self._queues: OrderedDict[SimpleQueue, list[_Range]] = OrderedDict()

    def covers(self, queue: SimpleQueue, begin: int, end: int, written: int) -> bool:
        """Tell whether all messages of a range of offsets were verified recently.

        Args:
            queue: the queue of the messages.
            begin: the first offset.
            end: the offset after the last one.
            written: the end of the log.
        """
        oldest = self._oldest(written)
        for verified in self._queues.get(queue, ()):
            if verified.begin <= begin and end <= verified.end and verified.age_from >= oldest:
                return True
        return False

    def add(self, queue: SimpleQueue, begin: int, end: int, written: int, size: int) -> None:
        """Record that these messages, of `size` bytes in all, have just been verified."""
        now = written + self._verified_bytes
        self._verified_bytes += size
        ranges = self._queues.setdefault(queue, [])
        self._queues.move_to_end(queue)
        if len(self._queues) > _RANGE_QUEUES_MAX:
            self._queues.popitem(last=False)
        for verified in ranges:
            if verified.end == begin and (now - verified.age_from) * _PARTS < self._believed_bytes:
                verified.end = end
                return
        oldest = self._oldest(written)
        ranges[:] = [verified for verified in ranges if verified.age_from >= oldest][
            1 - _RANGES_MAX :
        ]
        ranges.append(_Range(begin, end, now))

    def _oldest(self, written: int) -> int:
        return written + self._verified_bytes - self._believed_bytes


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
    ) -> tuple[list[memoryview], int, int] | None:
        """Return the records of the entries in a block, their size, and the last one's end."""
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
            return records, size, positions[-1] + sizes[-1]
        if not self._verified.covers(queue, offset, end, written):
            body = b"".join(records)
            codes = _codes(count).unpack_from(*block)
            columns = EntryColumns(tuple(range(offset, end)), positions, sizes, codes)
            if not self._are_valid(queue, columns, body):
                return None
            self._verified.add(queue, offset, end, written, size)
            records = [memoryview(body)]  # the verified copy, in case the page changes
        return records, size, positions[-1] + sizes[-1]

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
