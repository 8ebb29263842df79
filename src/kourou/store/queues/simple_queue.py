"""Simple consume queue (Java's SimpleCQ): an entry of 20 bytes for each message.

The entry with index n has queue offset n. Blanks fill the offsets of missing records, and the start
of a file if the queue begins inside it.

Source: ConsumeQueue.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from kourou.disk import Disk
from kourou.store.formats import BLANK_ENTRY, BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import queue_directory
from kourou.store.queues.appended import AppendedBatch, AppendedRecord
from kourou.store.queues.consumequeue import ConsumeQueue, has_record

_pack = ENTRY.pack


class SimpleQueue(ConsumeQueue):
    """One queue in `consumequeue/<topic>/<queue id>`."""

    __slots__ = ()

    entry_bytes: ClassVar[int] = ENTRY_BYTES

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int) -> None:
        segments = SegmentList(disk, queue_directory(topic, queue_id), file_bytes)
        super().__init__(disk, topic, queue_id, segments)

    def put(self, record: AppendedRecord) -> None:
        """Add the record's entry at `max_offset`, in memory."""
        self._tail.extend(_pack(record.physical_offset, record.size, record.tags_code))
        self.max_offset += 1

    def put_all(self, records: Sequence[AppendedRecord]) -> None:
        """Add the entries of records that follow one another, in memory: 0.2 us each."""
        self._tail += b"".join(
            [_pack(position, size, code) for position, _, size, _, _, code, _, _ in records]
        )
        self.max_offset += len(records)

    def put_batch(self, batch: AppendedBatch) -> None:
        """Add the encoded entries of the batch's records, in memory."""
        self._tail += batch.entries
        self.max_offset += batch.count

    def fill_to(self, queue_offset: int, position: int = 0, size: int = BLANK_ENTRY_SIZE) -> None:
        """Let the next entry be at `queue_offset`, with blanks for the missing ones before it.

        With a position and a size, those entries point at these damaged bytes of the log instead.
        """
        gap = queue_offset - self.max_offset
        if gap > 0:
            self._tail.extend(_pack(position, size, 0) * gap)
            self.max_offset = queue_offset

    def index_of(self, queue_offset: int) -> int:
        """Return the entry's index, which equals its offset."""
        return queue_offset

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry; None if it does not exist or has no record."""
        if not self.first <= queue_offset < self.max_offset:
            return None
        entry = next(self._entries(self.read(queue_offset, 1)), None)
        return entry if entry is not None and has_record(entry) else None

    def has_entry_before(self, queue_offset: int, physical_offset: int) -> bool:
        """Tell whether the files hold the entry before `queue_offset`, of an earlier record.

        At offset 0: whether the files begin there or there are none.
        """
        position = queue_offset * ENTRY_BYTES
        if queue_offset == 0:
            return self.segments.first == 0
        if not self.segments.first < position <= self.segments.end:
            return False
        entry = self._file_entry(queue_offset - 1)
        return entry is not None and entry.size > 0 and entry.physical_offset < physical_offset

    def restart_at(self, queue_offset: int) -> None:
        """Keep the files' entries below `queue_offset` and drop all others.

        Later flushes overwrite the data in the files from there on; `truncate` zeroes the rest.
        """
        self._begin_tail(queue_offset)
        self.max_offset = self.next_offset = queue_offset

    def start_at(self, queue_offset: int) -> None:
        """Restart the empty queue at `queue_offset`; blanks fill its first file up to there.

        There must be no files.
        """
        per_file = self.segments.file_bytes // ENTRY_BYTES
        blanks = queue_offset % per_file
        self._begin_tail(queue_offset - blanks, BLANK_ENTRY * blanks)
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def correct_min_offset(self, log_min_position: int) -> None:
        """Move `min_offset` to the first entry whose record is in the log; entries are in order."""
        low, high = max(self.min_offset, self.first), self.max_offset
        first = self.entry(low)
        if first is not None and first.physical_offset >= log_min_position:
            high = low  # the usual case costs one read
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry.physical_offset < log_min_position:
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def _entries(self, data: bytes) -> Iterator[QueueEntry]:
        return map(QueueEntry._make, ENTRY.iter_unpack(data))

    def _offset_after(self, index: int) -> int:
        return index
