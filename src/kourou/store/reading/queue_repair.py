"""Repair of corrupt queue entries: finds the queue's records in the log, and writes the entries.

Queue entries are derived data: the correct values follow from the log, between the records of the
nearest valid entries on both sides. The search walks that part of the log by the records' sizes,
past damage as well, at about 1 us a record, and verifies each record of the queue found there.

    record of the entry                    cause                      action
    found at another position, or with     the entry is corrupt       the entry is repaired
    another size or tags code
    not found                              the record is damaged      the reader gets an error
    not found, no valid entry before it,   its segment was removed    the entry is skipped
    and the log is whole from its begin

The search writes nothing and runs on any thread while another thread writes; `write_entries` writes
its results to the files, on the store's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.protocol.record.check import ExpectedRecord, RecordCheck
from kourou.protocol.record.keys import LIGHT_TOPIC_PREFIX
from kourou.protocol.record.layout import MAGIC_BLANK, RecordHeader
from kourou.protocol.record.read import read_checked
from kourou.protocol.record.scan import LOG_HEAD, candidates, may_be_record
from kourou.store.formats import ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.log.commitlog import CommitLog
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.consumequeue_table import ConsumeQueueTable

log = logging.getLogger(__name__)

SEARCH_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The most bytes of the log searched for one run of entries: some seconds."""
RUN_ENTRIES_MAX: Final = 1024
"""The most entries on each side of the corrupt one that may be corrupt as well and are repaired
with it; a page holds 205."""

_READ_BYTES: Final = 1024 * 1024


class Damage(NamedTuple):
    """A message that cannot be read: its queue and offset, the file and byte, and the reason."""

    topic: str
    queue_id: int
    queue_offset: int
    file: str
    file_offset: int
    reason: str


class RepairedEntry(NamedTuple):
    """A repaired queue entry, to be written to its file."""

    topic: str
    queue_id: int
    queue_offset: int
    entry: QueueEntry


class SearchResult(NamedTuple):
    """The result of a search for an entry's record.

    Attributes:
        found: by queue offset, the correct entry, for the requested one and its neighbours.
        is_removed: whether the requested record was removed with its segment.
        damage: why the requested record was not found; None if it was found or removed.
    """

    found: Mapping[int, QueueEntry]
    is_removed: bool
    damage: Damage | None


class QueueRepair:
    """Searches the log for the records of one queue.

    Args:
        log: the commit log.
        queue: the queue with corrupt entries.
        check: the verifier of the queue's records.
        floor: records below this log position belong to a deleted topic of the same name.
        bytes_max: the most bytes to search at a time.
    """

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        check: RecordCheck,
        *,
        floor: int = 0,
        bytes_max: int = SEARCH_BYTES_MAX,
    ) -> None:
        self._log = log
        self._queue = queue
        self._check = check
        self._floor = floor
        self._bytes_max = bytes_max

    def search(self, queue_offset: int, reason: str) -> SearchResult:
        """Search for the record of a message whose entry is invalid for the given `reason`.

        Raises:
            OSError: the queue cannot be read.
        """
        stored = self._entry(queue_offset)
        if stored is not None and self._is_removed(queue_offset, stored):
            return SearchResult({}, is_removed=True, damage=None)
        before, begin = self._neighbour(queue_offset, -1)
        after, end = self._neighbour(queue_offset, 1)
        walk = _Walk(self._log, *self._search_range(begin, end))
        before = max(before, queue_offset - RUN_ENTRIES_MAX - 1)
        after = min(after, queue_offset + RUN_ENTRIES_MAX + 1)
        found = self._records(walk, before, after)
        if queue_offset in found:
            return SearchResult(found, is_removed=False, damage=None)
        if 0 < begin == self._log.min_position and self._is_whole(begin, end):
            return SearchResult(found, is_removed=True, damage=None)
        position = walk.damaged_at
        if stored is not None and begin <= stored.physical_offset < end:
            position = stored.physical_offset
        return SearchResult(
            found, is_removed=False, damage=self._damage(queue_offset, reason, position)
        )

    def _damage(self, queue_offset: int, reason: str, position: int | None = None) -> Damage:
        queue = self._queue
        if position is not None:
            file, at = self._log.segments.name(position), self._log.file_offset(position)
        else:
            byte = queue_offset * ENTRY_BYTES
            file, at = queue.segments.name(byte), byte % queue.segments.file_bytes
            reason += ", and the log has no record of it between those of its neighbours"
        return Damage(queue.topic, queue.queue_id, queue_offset, file, at, reason)

    # Neighbouring entries ------------------------------------------------------------------------

    def _entry(self, queue_offset: int) -> QueueEntry | None:
        data = self._queue.read(queue_offset, 1)
        return QueueEntry._make(ENTRY.unpack(data)) if len(data) == ENTRY_BYTES else None

    def _is_removed(self, queue_offset: int, stored: QueueEntry) -> bool:
        """Tell whether the record was removed.

        It was if the entry and its neighbour both refer to positions below the log's begin, in
        ascending order.
        """
        low, begin = self._queue.min_offset, self._log.min_position
        beside = self._entry(queue_offset - 1 if queue_offset > low else queue_offset + 1)
        if beside is None or stored.size <= 0 or beside.size <= 0:
            return False
        first, second = stored.physical_offset, beside.physical_offset
        if queue_offset > low:
            first, second = second, first
        return 0 <= first < second < begin

    def _neighbour(self, queue_offset: int, step: int) -> tuple[int, int]:
        """Return the nearest offset with a valid entry, and the bound of the search in the log.

        The bound is the end of that entry's record if it precedes, else the record's begin. Without
        a valid entry, return the bounds of the queue and of the log.
        """
        low, high = self._queue.min_offset, self._queue.max_offset
        for at in range(queue_offset + step, queue_offset + step * (RUN_ENTRIES_MAX + 1), step):
            if not low <= at < high:
                break
            entry = self._entry(at)
            if entry is not None and self._is_valid(at, entry):
                return at, entry.physical_offset + (entry.size if step < 0 else 0)
        if step < 0:
            return low - 1, max(self._log.min_position, self._floor)
        return high, self._log.written_position

    def _is_valid(self, queue_offset: int, entry: QueueEntry) -> bool:
        position, size, _ = entry
        log = self._log
        end = min(log.written_position, log.segment_end(position))
        if not log.min_position <= position < position + size <= end:
            return False
        expected = ExpectedRecord(queue_offset, *entry)
        try:
            if not self._check.may_match(log.read(position, LOG_HEAD.size), expected):
                return False
            self._check.check(log.read(position, size), 0, expected)
        except (OSError, MalformedMessageError):
            return False
        return True

    def _search_range(self, begin: int, end: int) -> tuple[int, int]:
        if end - begin <= self._bytes_max:
            return begin, end
        if begin > max(self._log.min_position, self._floor):
            return begin, begin + self._bytes_max
        # Without a valid entry before, its record is more likely near the end.
        return max(begin, self._log.segment_end(end - self._bytes_max)), end

    def _is_whole(self, begin: int, end: int) -> bool:
        """Tell whether all records of this part of the log are valid."""
        if end - begin > self._bytes_max:
            return False
        walk = _Walk(self._log, begin, end)
        try:
            for position, size, *_ in walk:
                if read_checked(self._log.read(position, size), 0).total_size != size:
                    return False
        except (OSError, MalformedMessageError):
            return False
        return walk.damaged_at is None

    # The log between the neighbours --------------------------------------------------------------

    def _records(self, walk: _Walk, before: int, after: int) -> dict[int, QueueEntry]:
        """Return the entries of all whole records of the queue with offsets between the two."""
        found: dict[int, QueueEntry] = {}
        queue = self._queue
        is_light = queue.topic.startswith(LIGHT_TOPIC_PREFIX)
        for position, size, queue_id, queue_offset in walk:
            if is_light or (queue_id == queue.queue_id and before < queue_offset < after):
                entry = self._entry_of(position, size)
                if entry is not None and before < entry[0] < after:
                    # The later record wins: an earlier one belongs to a deleted topic of the name.
                    found[entry[0]] = entry[1]
        return found

    def _entry_of(self, position: int, size: int) -> tuple[int, QueueEntry] | None:
        """Return the offset and entry of a record of this queue; None if it is not a whole one."""
        try:
            data = self._log.read(position, size)
            header = read_checked(data, 0)
        except (OSError, MalformedMessageError):
            return None
        properties = header.properties(data)
        queue_offset = self._offset_in_queue(header, properties)
        if queue_offset is None or header.total_size != size:
            return None
        code = self._check.tags_code(header.topic, properties, header.store_at_ms)
        return queue_offset, QueueEntry(position, size, code)

    def _offset_in_queue(self, header: RecordHeader, properties: bytes) -> int | None:
        if (header.topic, header.queue_id) == (self._check.topic, self._check.queue_id):
            return header.queue_offset
        return self._check.light_offset(properties)


class _Walk:
    """Walks a part of the log by the sizes of its records, without verifying them.

    Attributes:
        damaged_at: the first position without a record; None if there was none.
    """

    def __init__(self, log: CommitLog, begin: int, end: int) -> None:
        self._log = log
        self._begin = begin
        self._end = end
        self._buffer = b""
        self._buffer_start = begin
        self.damaged_at: int | None = None

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, size, queue id and queue offset of each apparent record."""
        at, last = self._begin, self._begin - 1
        while at < self._end:
            segment_end = self._log.segment_end(at)
            fields = self._head(at)
            if fields is not None and fields[1] == MAGIC_BLANK and fields[0] == segment_end - at:
                at = segment_end
                continue
            if fields is not None and may_be_record(fields, at, segment_end):
                yield at, fields[0], fields[2], fields[3]
                last, at = at, at + fields[0]
                continue
            if self.damaged_at is None:
                self.damaged_at = at
            # The preceding record's size may be corrupt, so search from within that record.
            begin = max(last + 1, self._log.segment_end(at) - self._segment_bytes)
            at = self._next(begin, segment_end)
            last = at

    @property
    def _segment_bytes(self) -> int:
        return self._log.segments.file_bytes

    def _next(self, begin: int, segment_end: int) -> int:
        """Return the next position from `begin` of an apparent record, or the segment's end."""
        at = begin
        stop = min(self._end, segment_end)
        while at < stop:
            data = self._read(at, min(_READ_BYTES, segment_end - at))
            if len(data) < LOG_HEAD.size:
                break
            for candidate in candidates(data, at):
                if not at <= candidate <= at + len(data) - LOG_HEAD.size:
                    continue
                if may_be_record(
                    LOG_HEAD.unpack_from(data, candidate - at), candidate, segment_end
                ):
                    return candidate
            at += len(data) - LOG_HEAD.size + 1
        return segment_end

    def _head(self, position: int) -> tuple[int, ...] | None:
        at = position - self._buffer_start
        if at < 0 or at + LOG_HEAD.size > len(self._buffer):
            left = self._log.segment_end(position) - position
            self._buffer = self._read(position, min(_READ_BYTES, left))
            self._buffer_start, at = position, 0
            if len(self._buffer) < LOG_HEAD.size:
                self._buffer = self._buffer.ljust(LOG_HEAD.size, b"\0")  # a blank may be shorter
        return LOG_HEAD.unpack_from(self._buffer, at)

    def _read(self, position: int, size: int) -> bytes:
        try:
            return self._log.read(position, size)
        except OSError:
            return b""


def write_entries(disk: Disk, queues: ConsumeQueueTable, repaired: Iterable[RepairedEntry]) -> None:
    """Write the entries whose files still exist, and log them.

    Must run on the store's thread, so that no file is written that was removed meanwhile.
    Consecutive entries take one write. Nothing is synced: an entry is derived data, and if a crash
    loses the repair, the next read repairs it again.

    Args:
        disk: the disk that holds the queues' files.
        queues: all queues.
        repaired: the entries, in offset order within each queue.

    Raises:
        OSError: some entries are not written, or one is written in part.
    """
    for run in _runs(repaired):
        topic, queue_id, *_ = run[0]
        queue = queues.get(topic, queue_id)
        if queue is None:
            continue  # the topic was deleted meanwhile
        file_bytes = queue.segments.file_bytes
        # An expired file must not be created again.
        is_in_files = range(queue.segments.first, queue.file_end * ENTRY_BYTES)
        by_file: dict[int, list[RepairedEntry]] = {}
        for repair in run:
            byte = repair.queue_offset * ENTRY_BYTES
            if byte in is_in_files:
                by_file.setdefault(byte // file_bytes, []).append(repair)
        for entries in by_file.values():
            byte = entries[0].queue_offset * ENTRY_BYTES
            name, file_offset = queue.segments.name(byte), byte % file_bytes
            if not disk.exists(name):
                continue
            disk.write(
                name, file_offset, [b"".join(ENTRY.pack(*repair.entry) for repair in entries)]
            )
            log.warning(
                "consumequeue.entries_mended file=%s byte=%d count=%d topic=%s queue_id=%d "
                "queue_offset=%d",
                name, file_offset, len(entries), topic, queue_id, entries[0].queue_offset,
            )  # fmt: skip


def _runs(repaired: Iterable[RepairedEntry]) -> Iterator[list[RepairedEntry]]:
    """Yield lists of consecutive entries of one queue."""
    run: list[RepairedEntry] = []
    for repair in repaired:
        if run:
            last = run[-1]
            if repair[:3] != (last.topic, last.queue_id, last.queue_offset + 1):
                yield run
                run = []
        run.append(repair)
    if run:
        yield run
