"""Tracks the consume queues with entries in memory, and their files that are not synced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from kourou.disk import Disk
from kourou.store.log.damage import DamagedSpan
from kourou.store.queues.appended import AppendedBatch, AppendedRecord
from kourou.store.queues.consumequeue import ConsumeQueue

NEW_FILES_PER_FLUSH: Final = 8
"""The most files that one flush creates; one with its directory takes a third of a millisecond."""
FILES_PER_FLUSH: Final = 64
"""The most files that one flush writes to. A file that must be opened takes 15 us, 60 us on a
loaded machine; the limit keeps a flush below 5 ms."""


class QueueTails:
    """Adds entries to queues, writes them and syncs them.

    Args:
        disk: the disk that holds the queues' files.
        tail_bytes_max: bytes of entries of one queue in memory at which they are written.

    Attributes:
        unsynced: names of queue files written since their last sync, oldest first, each with the
            directories to sync because the file is new.
        flushed_bytes: total bytes of entries written to files, of all queues.
    """

    def __init__(self, disk: Disk, tail_bytes_max: int) -> None:
        self._disk = disk
        self._tail_bytes_max = tail_bytes_max
        self._with_tail: dict[ConsumeQueue, None] = {}
        self._with_long_tail: dict[ConsumeQueue, None] = {}
        self._round: dict[ConsumeQueue, None] = {}  # still to be flushed by `flush_some`
        self._is_recovering = True
        self.unsynced: dict[str, tuple[str, ...]] = {}
        self.flushed_bytes = 0

    def recovered(self) -> None:
        """Assume from now on that the names of existing files are durable.

        Before, directories are synced with every file, because a killed process may have created a
        file without syncing its directory.
        """
        self.flush()
        self._is_recovering = False

    def put(self, queue: ConsumeQueue, record: AppendedRecord) -> None:
        """Add the record's entry to the queue, in memory: about 0.4 us."""
        queue.put(record)
        self._with_tail[queue] = None
        if queue.tail_bytes >= self._tail_bytes_max:
            self._with_long_tail[queue] = None

    def put_all(self, queue: ConsumeQueue, records: Sequence[AppendedRecord]) -> None:
        """Add the entries of records that follow one another to the queue, in memory."""
        queue.put_all(records)
        self._mark_tail(queue)

    def put_batch(self, queue: ConsumeQueue, batch: AppendedBatch) -> None:
        """Add the entries of a batch's records to the queue, in memory."""
        queue.put_batch(batch)
        self._mark_tail(queue)

    def _mark_tail(self, queue: ConsumeQueue) -> None:
        self._with_tail[queue] = None
        if queue.tail_bytes >= self._tail_bytes_max:
            self._with_long_tail[queue] = None

    def put_at(self, queue: ConsumeQueue, queue_offset: int, record: AppendedRecord) -> None:
        """Add the record's entry at the offset, after blanks for a gap before it."""
        queue.fill_to(queue_offset)
        self.put(queue, record)

    def fill_damaged(self, queue: ConsumeQueue, queue_offset: int, span: DamagedSpan) -> None:
        """Let the queue continue at the offset; missing entries before it point at the damage."""
        queue.fill_to(queue_offset, span.position, span.size)
        self._with_tail[queue] = None

    def flush_long(self) -> None:
        """Write the tails that exceed the configured length.

        Raises:
            OSError: the tail that failed and those after it are still in memory.
        """
        while self._with_long_tail:
            self._flush(next(iter(self._with_long_tail)))

    def flush(self) -> None:
        """Write all tails to their files.

        Raises:
            OSError: the tail that failed and those after it are still in memory.
        """
        for queue in list(self._with_tail):
            self._flush(queue)

    def flush_some(self) -> None:
        """Write at most `FILES_PER_FLUSH` tails, of them `NEW_FILES_PER_FLUSH` to new files.

        The first call starts a round of all current tails; later calls continue the round until all
        of its tails are written.

        Raises:
            OSError: as `flush`; the next call continues the round.
        """
        if not self._round:
            self._round = dict.fromkeys(self._with_tail)
        new_files = 0
        for queue in list(islice(self._round, FILES_PER_FLUSH)):
            new_files += queue.needs_file
            if new_files > NEW_FILES_PER_FLUSH:
                break
            self._flush(queue)

    @property
    def is_flushing(self) -> bool:
        """Whether a round of `flush_some` is unfinished."""
        return bool(self._round)

    def sync(self) -> None:
        """Sync all files written since their last sync."""
        directories = {name for new_in in self.unsynced.values() for name in new_in}
        self._disk.sync_all(tuple(self.unsynced), sorted(directories))
        self.unsynced.clear()

    def _flush(self, queue: ConsumeQueue) -> None:
        tail_bytes = queue.tail_bytes
        names, is_new = queue.flush()
        self.flushed_bytes += tail_bytes
        self._unmark_tail(queue)
        directories: tuple[str, ...] = ()
        if is_new or self._is_recovering:
            directories = queue.directories()
        for name in names:
            self.unsynced[name] = self.unsynced.get(name) or directories

    def _unmark_tail(self, queue: ConsumeQueue) -> None:
        for waiting in (self._with_tail, self._with_long_tail, self._round):
            waiting.pop(queue, None)

    def truncate(self, queue: ConsumeQueue) -> None:
        """Remove the data after the queue's last entry from its files.

        The removal of whole files is durable on return: if a crash restored such a file, its
        entries would be mistaken for those of later records at the same log positions.
        """
        names_before = [queue.segments.name(start) for start in queue.segments.starts()]
        for name in queue.truncate():
            self.unsynced.setdefault(name, ())
        removed = names_before[len(queue.segments.starts()) :]
        for name in removed:
            self.unsynced.pop(name, None)
        if removed:
            self._disk.sync_directory(queue.segments.directory)

    def hide_first_files(self, queue: ConsumeQueue, count: int) -> list[int]:
        """Drop the queue's oldest files, which the caller must unlink; return their starts.

        See `kourou.store.expiry`.
        """
        starts = queue.segments.hide_first(count)
        for start in starts:
            self.unsynced.pop(queue.segments.name(start), None)
        return starts

    def _drop_tail(self, queue: ConsumeQueue) -> None:
        """Cancel all pending writes and syncs of the queue."""
        self._unmark_tail(queue)
        for start in queue.segments.starts():
            self.unsynced.pop(queue.segments.name(start), None)
