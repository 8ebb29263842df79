"""One consume queue: for each message of one queue of a topic, where it lies in the commit log.

Entry n of the queue is 20 bytes at byte n * 20 of its files. New entries wait in memory, the tail,
until the next flush: they are derived data, which recovery makes again from the log.

    min_offset ... entries in files ... [file_end] ... entries in the tail ... max_offset
                                                       (places given by append) ... next_offset

Source: ConsumeQueue.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable

from kourou.disk import Disk
from kourou.store.formats import BLANK_ENTRY, BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.paths import queue_directory
from kourou.store.segment_list import SegmentList

_pack = ENTRY.pack
_SEARCH_ENTRIES = 1024


class ConsumeQueue:
    """The entries of one queue, in files and in memory; reads may run on any thread.

    Attributes:
        min_offset: of the first entry whose record is still in the log.
        max_offset: one more than the last entry's: what consumers can see ends here.
        next_offset: what the next appended message gets.
        unchecked_below: entries below were in the files when the store was opened; from there on
            this process made them.
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

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = SegmentList(disk, queue_directory(topic, queue_id), file_bytes)
        self._disk = disk
        self.min_offset = self.max_offset = self.next_offset = self.unchecked_below = 0
        self._begin_tail(0)

    def _begin_tail(self, queue_offset: int, entries: bytes = b"") -> None:
        """Start a new tail; readers on other threads take tail and offset as one, old or new."""
        self._tail = bytearray(entries)
        self._tail_from = (queue_offset, self._tail)

    @property
    def file_end(self) -> int:
        """Entries below are in the files, those from there on in the tail."""
        return self._tail_from[0]

    @property
    def tail_bytes(self) -> int:
        """Bytes of entries that are in memory only."""
        return len(self._tail)

    @property
    def needs_file(self) -> bool:
        """Tell whether the next flush makes a file before it writes."""
        segments = self.segments
        return segments.first == segments.end or self.file_end * ENTRY_BYTES >= segments.end

    def put(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Add the entry at `max_offset`, in memory."""
        self._tail.extend(_pack(physical_offset, size, tags_code))
        self.max_offset += 1

    def fill_to(self, queue_offset: int) -> None:
        """Let the next entry be at `queue_offset`: blanks stand for those that are missing."""
        gap = queue_offset - self.max_offset
        if gap > 0:
            self._tail.extend(BLANK_ENTRY * gap)
            self.max_offset = queue_offset

    def read(self, queue_offset: int, count: int) -> bytes:
        """Return entries from `queue_offset` on: at most `count`, from one file or its tail.

        Empty if the file is missing, or if there is no such entry. May wait for the device.
        """
        try:
            return self._read(self._disk.read, queue_offset, count) or b""
        except FileNotFoundError:
            return b""

    def read_resident(self, queue_offset: int, count: int) -> bytes | None:
        """Return what `read` would, or None if that might wait for the device."""
        try:
            return self._read(self._disk.read_resident, queue_offset, count)
        except FileNotFoundError:
            return b""

    def _read(
        self, read: Callable[[str, int, int], bytes | None], queue_offset: int, count: int
    ) -> bytes | None:
        per_file = self.segments.file_bytes // ENTRY_BYTES
        stop = min(
            queue_offset + count,
            self.max_offset,
            queue_offset - queue_offset % per_file + per_file,
        )
        file_end, tail = self._tail_from
        if queue_offset >= file_end:
            at = (queue_offset - file_end) * ENTRY_BYTES
            return bytes(tail[at : (stop - file_end) * ENTRY_BYTES])
        position = queue_offset * ENTRY_BYTES
        size = (min(stop, file_end) - queue_offset) * ENTRY_BYTES
        data = read(self.segments.name(position), position % self.segments.file_bytes, size)
        if data is not None and stop > file_end and len(data) == size:
            data += tail[: (stop - file_end) * ENTRY_BYTES]
        return data

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry; None if it is not there, or stands for nothing."""
        if not self.first_offset <= queue_offset < self.max_offset:
            return None
        data = self.read(queue_offset, 1)
        if len(data) < ENTRY_BYTES:
            return None
        entry = QueueEntry._make(ENTRY.unpack(data))
        return entry if is_real(entry) else None

    @property
    def first_offset(self) -> int:
        """The offset at which the first file begins."""
        file_end = (
            self.file_end
        )  # read first: a flush on another thread makes the file, then moves it
        if self.segments.first == self.segments.end:
            return file_end
        return self.segments.first // ENTRY_BYTES

    def first_entry(self) -> QueueEntry | None:
        """Return the first entry in the files that stands for a record, of the first few."""
        if self.segments.first == self.segments.end:
            return None
        data = self._file_read(self.segments.first // ENTRY_BYTES, _SEARCH_ENTRIES)
        entries = (QueueEntry._make(fields) for fields in ENTRY.iter_unpack(data))
        return next(filter(is_real, entries), None)

    def holds_before(self, queue_offset: int, physical_offset: int) -> bool:
        """Tell whether the files hold the entry before `queue_offset`, of an earlier record.

        True for offset 0 of a queue whose files begin there, or that has none.
        """
        position = queue_offset * ENTRY_BYTES
        if queue_offset == 0:
            return self.segments.first == 0
        if not self.segments.first < position <= self.segments.end:
            return False
        entry = self._file_entry(queue_offset - 1)
        return entry is not None and entry.size > 0 and entry.physical_offset < physical_offset

    def flush(self) -> tuple[list[str], bool]:
        """Write the tail to the files, not synced.

        Returns:
            The names of the files written, and whether one of them is new.

        Raises:
            OSError: the tail is as it was.
        """
        written: list[str] = []
        end_before = self.segments.end
        at, position = 0, self.file_end * ENTRY_BYTES
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
        self._begin_tail(self.max_offset)
        return written, self.segments.end != end_before

    def restart_at(self, queue_offset: int) -> None:
        """Take the files' entries below `queue_offset` as they are and forget all others.

        What the files hold from there on is overwritten by later flushes; `cut` zeroes the rest.
        """
        self._begin_tail(queue_offset)
        self.max_offset = self.next_offset = queue_offset

    def start_at(self, queue_offset: int) -> None:
        """Begin the queue anew at `queue_offset`; blanks fill its first file up to there.

        There must be no files.
        """
        per_file = self.segments.file_bytes // ENTRY_BYTES
        blanks = queue_offset % per_file
        self._begin_tail(queue_offset - blanks, BLANK_ENTRY * blanks)
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def cut(self) -> list[str]:
        """Remove from the files what lies behind their last entry; return the files changed."""
        return self.segments.cut(self.file_end * ENTRY_BYTES)

    def find_end(self) -> int:
        """Return the offset behind the last entry in the files, by halving the last of them.

        Right only where entries follow one another without a hole: after a clean stop.
        """
        per_file = self.segments.file_bytes // ENTRY_BYTES
        for start in reversed(self.segments.starts()):
            low, high = 0, per_file
            while low < high:
                middle = (low + high) // 2
                entry = self._file_entry(start // ENTRY_BYTES + middle)
                if entry is not None and entry.size > 0:
                    low = middle + 1
                else:
                    high = middle
            if low:
                return start // ENTRY_BYTES + low
        return self.segments.first // ENTRY_BYTES

    def find_end_before(self, physical_offset: int) -> int:
        """Return the offset behind the last entry of the first run that lies below a log position.

        Reads entries one after the other, newest file first, since a crash may have left holes and
        halves of entries; what is returned ends a run without any.
        """
        for start in reversed(self.segments.starts()):
            end = self._run_end(start // ENTRY_BYTES, physical_offset)
            if end * ENTRY_BYTES > start:
                return end
        return self.segments.first // ENTRY_BYTES

    def _run_end(self, queue_offset: int, physical_offset: int) -> int:
        """Return where in one file, from `queue_offset` on, entries stop being in order."""
        stop = (queue_offset * ENTRY_BYTES + self.segments.file_bytes) // ENTRY_BYTES
        last = -1
        while queue_offset < stop:
            data = self._file_read(queue_offset, min(_SEARCH_ENTRIES, stop - queue_offset))
            for at, size, _ in ENTRY.iter_unpack(data):
                is_blank = at == 0 and size == BLANK_ENTRY_SIZE
                if not is_blank and not (size > 0 and last < at < physical_offset):
                    return queue_offset
                last = max(last, -1 if is_blank else at)
                queue_offset += 1
            if not data:
                return queue_offset
        return stop

    def _file_entry(self, queue_offset: int) -> QueueEntry | None:
        data = self._file_read(queue_offset, 1)
        return QueueEntry._make(ENTRY.unpack(data)) if data else None

    def _file_read(self, queue_offset: int, count: int) -> bytes:
        """Return whole entries of one file, whatever they hold; fewer where the file is short."""
        position = queue_offset * ENTRY_BYTES
        data = self._disk.read(
            self.segments.name(position),
            position % self.segments.file_bytes,
            count * ENTRY_BYTES,
        )
        return data[: len(data) - len(data) % ENTRY_BYTES]

    def correct_min_offset(self, log_min_position: int) -> None:
        """Move `min_offset` to the first entry whose record is in the log; entries are in order."""
        low, high = max(self.min_offset, self.first_offset), self.max_offset
        first = self.entry(low)
        if first is not None and first.physical_offset >= log_min_position:
            high = low  # the usual case, at the price of one read
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry.physical_offset < log_min_position:
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def count_expired_files(self, log_min_position: int) -> int:
        """Return how many of the oldest files name only records below; never the last file.

        Raises:
            OSError: a file cannot be read.
        """
        count = 0
        for start in self.segments.starts()[:-1]:
            last = self._file_entry((start + self.segments.file_bytes) // ENTRY_BYTES - 1)
            if last is None or last.physical_offset >= log_min_position:
                break
            count += 1
        return count


def is_real(entry: QueueEntry) -> bool:
    """Tell whether the entry stands for a record: no blank, no zeros."""
    return entry.size > 0 and not (entry.size == BLANK_ENTRY_SIZE and entry.physical_offset == 0)
