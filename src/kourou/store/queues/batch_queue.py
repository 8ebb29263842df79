"""Batch consume queue (Java's BatchCQ): an entry of 46 bytes for each batch of messages.

An entry contains its first offset and the number of its messages; entries are found by binary
search. Offsets without an entry are those of lost records; there are no blanks.

Source: BatchConsumeQueue.java (assignQueueOffset for `with_base`), apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import InvalidMessageError
from kourou.model.properties import (
    INNER_BASE,
    INNER_NUM,
    decode_properties,
    encode_properties,
)
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.keys import INNER_MESSAGES_MAX, inner_count
from kourou.store.formats import BATCH_ENTRY, BATCH_ENTRY_BYTES, BLANK_ENTRY_SIZE, QueueEntry
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import batch_queue_directory
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.consumequeue import ConsumeQueue

_NOT_COMPACTED: Final = -1
_UNWRITTEN: Final = QueueEntry(0, 0, 0)


class BatchEntry(NamedTuple):
    """Position and size of a batch in the log, and the queue offsets of its messages.

    Attributes:
        queue_offset: the offset of its first message.
        count: the number of messages; 0 or negative in an unwritten or torn entry.
    """

    physical_offset: int
    size: int
    tags_code: int
    store_at_ms: int
    queue_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used

    @property
    def end(self) -> int:
        """The offset just after its last message."""
        return self.queue_offset + self.count

    @property
    def is_written(self) -> bool:
        """Whether all fields have values that a queue can have written."""
        return self.size > 0 and self.count > 0 and self.queue_offset >= 0


def batch_entries(data: bytes) -> Iterator[BatchEntry]:
    """Return the entries in `data`, which must hold whole entries only."""
    return (BatchEntry._make(fields[:6]) for fields in BATCH_ENTRY.iter_unpack(data))


class BatchQueue(ConsumeQueue):
    """One queue in `batchconsumequeue/<topic>/<queue id>`."""

    __slots__ = ("_last_found",)

    entry_bytes: ClassVar[int] = BATCH_ENTRY_BYTES

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int) -> None:
        segments = SegmentList(disk, batch_queue_directory(topic, queue_id), file_bytes)
        super().__init__(disk, topic, queue_id, segments)
        self._last_found = 0  # an entry's index: most reads continue where the previous one ended

    def put(self, record: AppendedRecord) -> None:
        """Add the record's entry at `max_offset`, in memory."""
        self._put(
            record.physical_offset, record.size, record.tags_code, record.store_at_ms, record.count
        )

    def _put(self, position: int, size: int, code: int, store_at_ms: int, count: int) -> None:
        self._tail.extend(
            BATCH_ENTRY.pack(
                position, size, code, store_at_ms, self.max_offset, count, _NOT_COMPACTED, 0
            )
        )
        self.max_offset += count

    def fill_to(self, queue_offset: int, position: int = 0, size: int = BLANK_ENTRY_SIZE) -> None:
        """Let the next entry begin at `queue_offset`, without entries for the offsets before.

        With a position and a size, entries that point at those damaged bytes of the log cover them.
        """
        while size != BLANK_ENTRY_SIZE and self.max_offset < queue_offset:
            count = min(queue_offset - self.max_offset, INNER_MESSAGES_MAX)
            self._put(position, size, 0, 0, count)
        self.max_offset = max(self.max_offset, queue_offset)

    # Finding an entry ----------------------------------------------------------------------------

    def index_of(self, queue_offset: int, read: Callable[[int, int], bytes] | None = None) -> int:
        """Return the index of the entry that contains the offset, else of the next one.

        `read` replaces the queue's own read, which may wait for the device.
        """
        read = read or self.read
        first, end = self.first, self.end

        def entry_at(index: int) -> BatchEntry | None:
            return next(batch_entries(read(index, 1)), None) if first <= index < end else None

        for index in (self._last_found, self._last_found + 1):
            entry = entry_at(index)
            if entry is not None and entry.queue_offset <= queue_offset < entry.end:
                self._last_found = index
                return index
        index = _first_after(entry_at, first, end, queue_offset)
        self._last_found = index
        return index

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry that contains the offset; None if there is none."""
        if not 0 <= queue_offset < self.max_offset:
            return None
        entry = self._entry_at(self.index_of(queue_offset))
        if entry is None or not entry.is_written or entry.queue_offset > queue_offset:
            return None
        return QueueEntry._make(entry[:3])

    def _entry_at(self, index: int) -> BatchEntry | None:
        """Return one entry; None if its file was removed, or there is none."""
        if index >= self.end:
            return None
        return next(batch_entries(self.read(index, 1)), None)

    def directories(self) -> tuple[str, ...]:
        """Return the directories to sync for new files; the kind's root may be new as well."""
        return (*super().directories(), "")

    # Recovery ------------------------------------------------------------------------------------

    def has_entry_before(self, queue_offset: int, physical_offset: int) -> bool:
        """Tell whether the files hold the entry before `queue_offset`, of an earlier record.

        At offset 0: whether the files begin there or there are none.
        """
        if queue_offset == 0:
            return self.segments.first == 0
        entry = self._in_file(self._file_index(queue_offset - 1))
        return (
            entry is not None
            and entry.is_written
            and entry.end == queue_offset
            and entry.physical_offset < physical_offset
        )

    def restart_at(self, queue_offset: int) -> None:
        """Keep the files' entries below `queue_offset` and drop all others.

        Later flushes overwrite the data in the files from there on; `truncate` zeroes the rest.
        """
        index = self._file_index(max(queue_offset - 1, 0))
        entry = self._in_file(index)
        if entry is not None and entry.is_written and entry.end <= queue_offset:
            index += 1
        self._begin_tail(index)
        self.max_offset = self.next_offset = queue_offset

    def start_at(self, queue_offset: int) -> None:
        """Restart the empty queue at `queue_offset`. There must be no files."""
        self._begin_tail(0)
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def correct_min_offset(self, log_min_position: int) -> None:
        """Move `min_offset` to the first entry whose record is in the log; entries are in order."""
        low, high = self.first, self.end
        first = self._entry_at(low)
        if first is not None and first.physical_offset >= log_min_position:
            high = low  # the usual case costs one read
        while low < high:
            middle = (low + high) // 2
            entry = self._entry_at(middle)
            if entry is None or entry.physical_offset < log_min_position:
                low = middle + 1
            else:
                high = middle
        begin = self._entry_at(low)
        offset = self.max_offset if begin is None else begin.queue_offset
        self.min_offset = max(self.min_offset, offset)

    def _entries(self, data: bytes) -> Iterator[QueueEntry]:
        for entry in batch_entries(data):
            yield QueueEntry._make(entry[:3]) if entry.is_written else _UNWRITTEN

    def _offset_after(self, index: int) -> int:
        """Return the offset just after the entries in the files below `index`."""
        entry = self._in_file(index - 1)
        return entry.end if entry is not None and entry.is_written else 0

    def _file_index(self, queue_offset: int) -> int:
        """Return the same as `index_of`, for all data in the files, beyond the queue's end too."""
        begin, end = (at // BATCH_ENTRY_BYTES for at in (self.segments.first, self.segments.end))
        return _first_after(self._in_file, begin, end, queue_offset)

    def _in_file(self, index: int) -> BatchEntry | None:
        if not self.segments.first <= index * BATCH_ENTRY_BYTES < self.segments.end:
            return None
        return next(batch_entries(self._file_read(index, 1)), None)


def _first_after(
    read: Callable[[int], BatchEntry | None], low: int, high: int, queue_offset: int
) -> int:
    """Return the index of the first entry from `low` that ends after the offset.

    An unwritten entry counts as after the offset, a removed one as before it.
    """
    while low < high:
        middle = (low + high) // 2
        entry = read(middle)
        if entry is None or (entry.is_written and entry.end <= queue_offset):
            low = middle + 1
        else:
            high = middle
    return low


def with_base(draft: RecordDraft, queue: ConsumeQueue) -> RecordDraft:
    """Return an inner batch with the queue's next offset as its base offset.

    An inner batch is a batch of messages stored as one record. The property `INNER_NUM` is the
    number of messages in the body, as counted by the broker. `INNER_BASE` is the offset of the
    first one, which the append assigns.

    Raises:
        InvalidMessageError: the queue is not a batch queue, or the batch has no count or one that
            an entry cannot hold.
    """
    if not isinstance(queue, BatchQueue):
        raise InvalidMessageError(
            f"topic {queue.topic} has no batch queues and cannot store inner batches"
        )
    properties = decode_properties(draft.properties)
    count = properties.get(INNER_NUM, "")
    if inner_count(count) is None:
        raise InvalidMessageError(
            f"an inner batch has 1 to {INNER_MESSAGES_MAX} messages; its property {INNER_NUM} is "
            f"{count!r}"
        )
    properties[INNER_BASE] = str(queue.next_offset)
    return replace(draft, properties=encode_properties(properties))
