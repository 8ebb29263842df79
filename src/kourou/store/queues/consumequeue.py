"""Consume queue: the positions in the commit log of the messages of one queue of a topic.

A queue is an array of entries of equal size: entry n is at byte n * size of its files. New entries
are buffered in memory, in the tail, until the next flush. They are derived data, which recovery
rebuilds from the log. There are two kinds with a common interface:

    kind        an entry is for         queue offset of an entry
    SimpleQueue one message, 20 bytes   its index
    BatchQueue  one batch, 46 bytes     in the entry, with the number of messages

    min_offset ... entries in files ... [file_end] ... entries in the tail ... max_offset
                                               (offsets assigned by appends) ... next_offset

Source: ConsumeQueueInterface.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from kourou.disk import Disk
from kourou.store.formats import BLANK_ENTRY_SIZE, QueueEntry
from kourou.store.log.segment_list import SegmentList
from kourou.store.queues.appended import AppendedBatch, AppendedRecord

_SEARCH_ENTRIES = 1024
_FEW_ENTRIES = 64
"""Entries examined first: in a store with very many queues, most have no more."""
_NO_LIMIT = 1 << 62


class ConsumeQueue(ABC):
    """The entries of one queue, in files and in memory; reads may run on any thread.

    Attributes:
        entry_bytes: the size of an entry.
        min_offset: the offset of the first message whose record is still in the log.
        max_offset: the offset after the last message visible to consumers.
        next_offset: the offset of the next appended message.
        unverified_below: entries with lower offsets were in the files when the store was opened;
            this process made the others.
    """

    __slots__ = (
        "_disk",
        "_tail",
        "_tail_from",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "segments",
        "topic",
        "unverified_below",
    )

    entry_bytes: ClassVar[int]

    def __init__(self, disk: Disk, topic: str, queue_id: int, segments: SegmentList) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self._disk = disk
        self.min_offset = self.max_offset = self.next_offset = self.unverified_below = 0
        self._begin_tail(0)

    # Operations that depend on the kind ----------------------------------------------------------

    @abstractmethod
    def put(self, record: AppendedRecord) -> None:
        """Add the record's entry at `max_offset`, in memory."""

    def put_all(self, records: Sequence[AppendedRecord]) -> None:
        """Add the entries of records that follow one another, in memory."""
        for record in records:
            self.put(record)

    def put_batch(self, batch: AppendedBatch) -> None:
        """Add the entries of the batch's records, in memory."""
        self.put_all(list(batch.records()))

    @abstractmethod
    def fill_to(self, queue_offset: int, position: int = 0, size: int = BLANK_ENTRY_SIZE) -> None:
        """Let the next entry be at `queue_offset`; missing entries before it have no record.

        With a position and a size, they point at those bytes of the log, which are damaged.
        """

    @abstractmethod
    def index_of(self, queue_offset: int) -> int:
        """Return the index of the entry that contains the offset, else of the next one."""

    @abstractmethod
    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry that contains the offset; None if none does, or it has no record."""

    @abstractmethod
    def has_entry_before(self, queue_offset: int, physical_offset: int) -> bool:
        """Tell whether the files hold the entry before `queue_offset`, of an earlier record.

        At offset 0: whether the files begin there or there are none.
        """

    @abstractmethod
    def restart_at(self, queue_offset: int) -> None:
        """Keep the files' entries below `queue_offset` and drop all others.

        Later flushes overwrite the data in the files from there on; `truncate` zeroes the rest.
        """

    @abstractmethod
    def start_at(self, queue_offset: int) -> None:
        """Restart the empty queue at `queue_offset`. There must be no files."""

    @abstractmethod
    def correct_min_offset(self, log_min_position: int) -> None:
        """Move `min_offset` to the first entry whose record is in the log; entries are in order."""

    @abstractmethod
    def _entries(self, data: bytes) -> Iterator[QueueEntry]:
        """Return the entries in `data`, whole entries only; size 0 for unwritten and torn ones."""

    @abstractmethod
    def _offset_after(self, index: int) -> int:
        """Return the offset just after the entries in the files below `index`."""

    # Entries in memory and in files --------------------------------------------------------------

    def _begin_tail(self, index: int, entries: bytes = b"") -> None:
        """Start a new tail; other threads read buffer and index as one pair, old or new."""
        self._tail = bytearray(entries)
        self._tail_from = (index, self._tail)

    @property
    def file_end(self) -> int:
        """The index of the first entry in the tail; lower ones are in the files."""
        return self._tail_from[0]

    @property
    def end(self) -> int:
        """The index after the last entry."""
        file_end, tail = self._tail_from
        return file_end + len(tail) // self.entry_bytes

    @property
    def first(self) -> int:
        """The index of the first file's first entry."""
        # Read first: a flush on another thread creates the file, then moves `file_end`.
        file_end = self.file_end
        if self.segments.first == self.segments.end:
            return file_end
        return self.segments.first // self.entry_bytes

    @property
    def tail_bytes(self) -> int:
        """Bytes of entries that are in memory only."""
        return len(self._tail)

    @property
    def needs_file(self) -> bool:
        """Whether the next flush must create a file before it writes."""
        segments = self.segments
        return segments.first == segments.end or self.file_end * self.entry_bytes >= segments.end

    def read(self, index: int, count: int) -> bytes:
        """Return at most `count` entries from `index`, out of one file and the tail after it.

        Empty if the file is missing or there is no such entry. May wait for the device.
        """
        try:
            return self._read(self._disk.read, index, count) or b""
        except FileNotFoundError:
            return b""

    def read_resident(self, index: int, count: int) -> bytes | None:
        """Return what `read` would, or None if that might wait for the device."""
        try:
            return self._read(self._disk.read_resident, index, count)
        except FileNotFoundError:
            return b""

    def _read(
        self, read: Callable[[str, int, int], bytes | None], index: int, count: int
    ) -> bytes | None:
        width = self.entry_bytes
        per_file = self.segments.file_bytes // width
        stop = min(index + count, index - index % per_file + per_file)
        file_end, tail = self._tail_from
        if index >= file_end:
            data = bytes(tail[(index - file_end) * width : (stop - file_end) * width])
            return data[: len(data) - len(data) % width]
        position = index * width
        size = (min(stop, file_end) - index) * width
        found = read(self.segments.name(position), position % self.segments.file_bytes, size)
        if found is not None and stop > file_end and len(found) == size:
            found += tail[: (stop - file_end) * width]
        return found

    def first_entry(self) -> QueueEntry | None:
        """Return the first entry with a record among the first 1024 in the files; else None."""
        if self.segments.first == self.segments.end:
            return None
        data = self._file_read(self.segments.first // self.entry_bytes, _SEARCH_ENTRIES)
        return next(filter(has_record, self._entries(data)), None)

    def flush(self) -> tuple[list[str], bool]:
        """Write the tail to the files, without a sync.

        Returns:
            The names of the files written, and whether one of them is new.

        Raises:
            OSError: the tail is unchanged.
        """
        written: list[str] = []
        end_before = self.segments.end
        at, position = 0, self.file_end * self.entry_bytes
        step = self.segments.file_bytes
        while at < len(self._tail):
            is_first = self.segments.first == self.segments.end
            if is_first:
                self._disk.make_directory(self.segments.directory)
            if is_first or position >= self.segments.end:
                self.segments.create(position - position % step)
            size = min(len(self._tail) - at, step - position % step)
            name = self.segments.name(position)
            self._disk.write(name, position % step, [bytes(self._tail[at : at + size])])
            written.append(name)
            at += size
            position += size
        self._begin_tail(self.end)
        return written, self.segments.end != end_before

    def directories(self) -> tuple[str, ...]:
        """Return the directories to sync after the queue created files, innermost first."""
        topic_directory = self.segments.directory.rpartition("/")[0]
        return (self.segments.directory, topic_directory, topic_directory.rpartition("/")[0])

    def truncate(self) -> list[str]:
        """Remove the data after the last entry from the files; return the files changed."""
        return self.segments.truncate(self.file_end * self.entry_bytes)

    def find_end(self) -> int:
        """Return the offset after the last entry in the files; correct after a clean stop only."""
        return self.find_end_before(_NO_LIMIT)

    def find_end_before(self, physical_offset: int) -> int:
        """Return the offset after the last entry whose record is below a log position.

        The entries of all records below must have been synced; the data after them may be anything
        that a crash left. A damaged entry among them does not count as the end.
        """
        for start in reversed(self.segments.starts()):
            index = start // self.entry_bytes
            end = self._end_in_file(index, physical_offset)
            if end > index:
                return self._offset_after(end)
        return self._offset_after(self.segments.first // self.entry_bytes)

    def _end_in_file(self, first: int, physical_offset: int) -> int:
        """Return the index after the last entry of one file whose record is below a log position.

        Uses a binary search: a file may have 300,000 entries, and a store 40,000 files.
        """

        def is_below(entry: QueueEntry | None) -> bool:
            if entry is None or not has_record(entry):
                return entry is not None and entry.size == BLANK_ENTRY_SIZE
            return entry.size > 0 and 0 <= entry.physical_offset < physical_offset

        low, high = first, first + self.segments.file_bytes // self.entry_bytes
        head = self._file_read(first, min(_FEW_ENTRIES + _SEARCH_ENTRIES, high - first))
        few = head[: _FEW_ENTRIES * self.entry_bytes]
        for entry in self._entries(few):
            if not is_below(entry):
                high = low
                break
            low += 1
        if high == low and _is_zero(head[(low - first) * self.entry_bytes :]):
            return low  # one read suffices for a queue with few entries, as most are
        while low < high:
            middle = (low + high) // 2
            if is_below(self._file_entry(middle)):
                low = middle + 1
            else:
                high = middle
        return self._end_after_damage(first, low, is_below)

    def _end_after_damage(
        self, first: int, end: int, is_below: Callable[[QueueEntry | None], bool]
    ) -> int:
        """Return the end, or a later one if the entry at `end` is damaged and others follow."""
        file_end = first + self.segments.file_bytes // self.entry_bytes
        before = self._file_entry(end - 1) if end > first else None
        last = -1 if before is None else before.physical_offset
        at = end
        while at < file_end:
            data = self._file_read(at, min(_SEARCH_ENTRIES, file_end - at))
            if _is_zero(data):
                break
            for number, entry in enumerate(self._entries(data), at):
                if has_record(entry) and is_below(entry) and entry.physical_offset > last:
                    end, last = number + 1, entry.physical_offset
            if end <= at:
                break
            at = end
        return end

    def end_of_matching(self, matches: Callable[[QueueEntry], bool]) -> int:
        """Return the offset after the matching entries that the files hold after the queue's end.

        Stops at the first entry that does not match. These entries are not part of the queue yet;
        see `restart_at`.
        """
        index = end = self.end
        if self.segments.first <= end * self.entry_bytes < self.segments.end:
            for entry in self._entries(self._file_read(end, _SEARCH_ENTRIES)):
                if not matches(entry):
                    break
                index += 1
        return self.max_offset if index == end else self._offset_after(index)

    def _file_entry(self, index: int) -> QueueEntry | None:
        return next(self._entries(self._file_read(index, 1)), None)

    def _file_read(self, index: int, count: int) -> bytes:
        """Return whole entries of one file, valid or not; fewer if the file is short."""
        position = index * self.entry_bytes
        data = self._disk.read(
            self.segments.name(position),
            position % self.segments.file_bytes,
            count * self.entry_bytes,
        )
        return data[: len(data) - len(data) % self.entry_bytes]

    def count_expired_files(self, log_min_position: int) -> int:
        """Return how many of the oldest files refer only to records below; never the last file.

        Raises:
            OSError: a file cannot be read.
        """
        count = 0
        for start in self.segments.starts()[:-1]:
            last = self._file_entry((start + self.segments.file_bytes) // self.entry_bytes - 1)
            if last is None or last.physical_offset >= log_min_position:
                break
            count += 1
        return count


def has_record(entry: QueueEntry) -> bool:
    """Tell whether the entry has a record: it is neither a blank nor zeros."""
    return entry.size > 0 and not (entry.size == BLANK_ENTRY_SIZE and entry.physical_offset == 0)


def _is_zero(data: bytes) -> bool:
    """Tell whether all bytes are zero, by one memory comparison: 1 us for 20 KB."""
    return data == bytes(len(data))


def count_files(queues: Iterable[ConsumeQueue]) -> int:
    """Return how many files the queues have; 0.2 us a queue.

    Expired files count as well: each queue is counted from offset 0 to its last file.
    """
    lists = (queue.segments for queue in queues)
    return sum(one.end // one.file_bytes for one in lists if one.first != one.end)
