"""One consume queue: for each message of one queue of a topic, where it lies in the commit log.

A queue is a row of entries of one size, entry n at byte n * size of its files. New entries wait in
memory, the tail, until the next flush: they are derived data, which recovery makes again from the
log. There are two kinds; whoever opens, recovers, reads, expires or checks queues need not know
which one it has:

    kind        an entry is for         offset of an entry
    SimpleQueue one message, 20 bytes   its number
    BatchQueue  one batch, 46 bytes     is in it, with how many messages it has

    min_offset ... entries in files ... [file_end] ... entries in the tail ... max_offset
                                                       (places given by append) ... next_offset

Source: ConsumeQueueInterface.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from kourou.disk import Disk
from kourou.store.formats import BLANK_ENTRY_SIZE, QueueEntry
from kourou.store.log.segment_list import SegmentList
from kourou.store.queues.dispatch import Appended, AppendedRun

_SEARCH_ENTRIES = 1024
_FEW_ENTRIES = 64
"""Looked at first: most queues of a store with very many have no more."""
_NO_LIMIT = 1 << 62


class ConsumeQueue(ABC):
    """The entries of one queue, in files and in memory; reads may run on any thread.

    Attributes:
        entry_bytes: the size of an entry.
        min_offset: of the first message whose record is still in the log.
        max_offset: one more than the last message's: what consumers can see ends here.
        next_offset: what the next appended message gets.
        unchecked_below: entries of lower offsets were in the files when the store was opened; from
            there on this process made them.
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
        "unchecked_below",
    )

    entry_bytes: ClassVar[int]

    def __init__(self, disk: Disk, topic: str, queue_id: int, segments: SegmentList) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        self._disk = disk
        self.min_offset = self.max_offset = self.next_offset = self.unchecked_below = 0
        self._begin_tail(0)

    # What the kinds do each in its way -----------------------------------------------------------

    @abstractmethod
    def put(self, record: Appended) -> None:
        """Add the record's entry at `max_offset`, in memory."""

    def put_all(self, records: Sequence[Appended]) -> None:
        """Add the entries of records that follow one another, in memory."""
        for record in records:
            self.put(record)

    def put_run(self, run: AppendedRun) -> None:
        """Add the entries of the run's records, in memory."""
        self.put_all(list(run.records()))

    @abstractmethod
    def fill_to(self, queue_offset: int, position: int = 0, size: int = BLANK_ENTRY_SIZE) -> None:
        """Let the next entry be at `queue_offset`; what is missing before stands for nothing.

        With a position and a size it points at those bytes of the log: they are damaged.
        """

    @abstractmethod
    def index_of(self, queue_offset: int) -> int:
        """Return the number of the entry that has the offset, or is the first one behind it."""

    @abstractmethod
    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry that has the offset; None if there is none, or it stands for nothing."""

    @abstractmethod
    def holds_before(self, queue_offset: int, physical_offset: int) -> bool:
        """Tell whether the files hold the entry before `queue_offset`, of an earlier record.

        True for offset 0 of a queue whose files begin there, or that has none.
        """

    @abstractmethod
    def restart_at(self, queue_offset: int) -> None:
        """Take the files' entries below `queue_offset` as they are and forget all others.

        What the files hold from there on is overwritten by later flushes; `cut` zeroes the rest.
        """

    @abstractmethod
    def start_at(self, queue_offset: int) -> None:
        """Begin the queue anew at `queue_offset`. There must be no files."""

    @abstractmethod
    def correct_min_offset(self, log_min_position: int) -> None:
        """Move `min_offset` to the first entry whose record is in the log; entries are in order."""

    @abstractmethod
    def _entries(self, data: bytes) -> Iterator[QueueEntry]:
        """Return the entries in whole ones' bytes; size 0 for what was never written, or torn."""

    @abstractmethod
    def _offset_behind(self, index: int) -> int:
        """Return the offset just behind the entries in the files below number `index`."""

    # Entries in memory and in files --------------------------------------------------------------

    def _begin_tail(self, index: int, entries: bytes = b"") -> None:
        """Start a new tail; readers on other threads take tail and place as one, old or new."""
        self._tail = bytearray(entries)
        self._tail_from = (index, self._tail)

    @property
    def file_end(self) -> int:
        """Entries of lower numbers are in the files, those from there on in the tail."""
        return self._tail_from[0]

    @property
    def end(self) -> int:
        """One more than the number of the last entry."""
        file_end, tail = self._tail_from
        return file_end + len(tail) // self.entry_bytes

    @property
    def first(self) -> int:
        """The number of the entry with which the first file begins."""
        # Read before: a flush on another thread makes the file, then moves it.
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
        """Tell whether the next flush makes a file before it writes."""
        segments = self.segments
        return segments.first == segments.end or self.file_end * self.entry_bytes >= segments.end

    def read(self, index: int, count: int) -> bytes:
        """Return entries from number `index` on: at most `count`, from one file or its tail.

        Empty if the file is missing, or if there is no such entry. May wait for the device.
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
        """Return the first entry in the files that stands for a record, of the first few."""
        if self.segments.first == self.segments.end:
            return None
        data = self._file_read(self.segments.first // self.entry_bytes, _SEARCH_ENTRIES)
        return next(filter(is_real, self._entries(data)), None)

    def flush(self) -> tuple[list[str], bool]:
        """Write the tail to the files, not synced.

        Returns:
            The names of the files written, and whether one of them is new.

        Raises:
            OSError: the tail is as it was.
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
        """Return what is to be synced when the queue makes files, from the inside out."""
        topic_directory = self.segments.directory.rpartition("/")[0]
        return (self.segments.directory, topic_directory, topic_directory.rpartition("/")[0])

    def cut(self) -> list[str]:
        """Remove from the files what lies behind their last entry; return the files changed."""
        return self.segments.cut(self.file_end * self.entry_bytes)

    def find_end(self) -> int:
        """Return the offset behind the last entry in the files; right after a clean stop."""
        return self.find_end_before(_NO_LIMIT)

    def find_end_before(self, physical_offset: int) -> int:
        """Return the offset behind the last entry whose record lies below a log position.

        The entries of all records below must have been synced; what a crash left behind them may
        be anything. A damaged entry between them does not count as the end.
        """
        for start in reversed(self.segments.starts()):
            index = start // self.entry_bytes
            end = self._end_in_file(index, physical_offset)
            if end > index:
                return self._offset_behind(end)
        return self._offset_behind(self.segments.first // self.entry_bytes)

    def _end_in_file(self, first: int, physical_offset: int) -> int:
        """Return the number behind the last entry of one file that lies below a log position.

        By halving, since a file may have 300,000 of them and a store 40,000 files.
        """

        def is_below(entry: QueueEntry | None) -> bool:
            if entry is None or not is_real(entry):
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
            return low  # one read tells it of a queue with few entries, as most are
        while low < high:
            middle = (low + high) // 2
            if is_below(self._file_entry(middle)):
                low = middle + 1
            else:
                high = middle
        return self._end_behind_damage(first, low, is_below)

    def _end_behind_damage(
        self, first: int, end: int, is_below: Callable[[QueueEntry | None], bool]
    ) -> int:
        """Return the end, or one behind it where an entry at `end` is damaged and others follow."""
        file_end = first + self.segments.file_bytes // self.entry_bytes
        before = self._file_entry(end - 1) if end > first else None
        last = -1 if before is None else before.physical_offset
        at = end
        while at < file_end:
            data = self._file_read(at, min(_SEARCH_ENTRIES, file_end - at))
            if _is_zero(data):
                break
            for number, entry in enumerate(self._entries(data), at):
                if is_real(entry) and is_below(entry) and entry.physical_offset > last:
                    end, last = number + 1, entry.physical_offset
            if end <= at:
                break
            at = end
        return end

    def end_in_files(self, is_wanted: Callable[[QueueEntry], bool]) -> int:
        """Return the offset behind the entries that the files hold next, as far as all are wanted.

        They are no part of the queue as yet: see `restart_at`.
        """
        index = end = self.end
        if self.segments.first <= end * self.entry_bytes < self.segments.end:
            for entry in self._entries(self._file_read(end, _SEARCH_ENTRIES)):
                if not is_wanted(entry):
                    break
                index += 1
        return self.max_offset if index == end else self._offset_behind(index)

    def _file_entry(self, index: int) -> QueueEntry | None:
        return next(self._entries(self._file_read(index, 1)), None)

    def _file_read(self, index: int, count: int) -> bytes:
        """Return whole entries of one file, whatever they hold; fewer where the file is short."""
        position = index * self.entry_bytes
        data = self._disk.read(
            self.segments.name(position),
            position % self.segments.file_bytes,
            count * self.entry_bytes,
        )
        return data[: len(data) - len(data) % self.entry_bytes]

    def count_expired_files(self, log_min_position: int) -> int:
        """Return how many of the oldest files name only records below; never the last file.

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


def is_real(entry: QueueEntry) -> bool:
    """Tell whether the entry stands for a record: no blank, no zeros."""
    return entry.size > 0 and not (entry.size == BLANK_ENTRY_SIZE and entry.physical_offset == 0)


def _is_zero(data: bytes) -> bool:
    """Tell whether all bytes are zero, by one comparison of memory: 1 us for 20 KB."""
    return data == bytes(len(data))


def count_files(queues: Iterable[ConsumeQueue]) -> int:
    """Return how many files the queues have; 0.2 us a queue.

    Counted from where a queue's first file would be, whatever expired of them.
    """
    lists = (queue.segments for queue in queues)
    return sum(one.end // one.file_bytes for one in lists if one.first != one.end)
