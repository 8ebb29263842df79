"""Which consume queues hold entries in memory, and which of their files wait for a sync."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from kourou.disk import Disk
from kourou.store.log.damage import DamagedSpan
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.dispatch import Appended, AppendedRun

NEW_FILES_PER_FLUSH: Final = 8
"""Files that one flush makes: each, with its directory, takes a third of a millisecond."""
FILES_PER_FLUSH: Final = 64
"""Files that one flush writes to: beyond the open ones, each takes 15 us, and on a loaded machine
60: nobody is to wait for 5 ms."""


class QueueTails:
    """Adds entries to queues, writes them and syncs them.

    Args:
        disk: where the queues' files are.
        tail_bytes_max: entries of one queue in memory, before they are written.

    Attributes:
        unsynced: names of queue files written since their last sync, oldest first, with the
            directories that are to be synced with each because the file is new.
        flushed_bytes: of entries that were written to files, of all queues.
    """

    def __init__(self, disk: Disk, tail_bytes_max: int) -> None:
        self._disk = disk
        self._tail_bytes_max = tail_bytes_max
        self._with_tail: dict[ConsumeQueue, None] = {}
        self._with_long_tail: dict[ConsumeQueue, None] = {}
        self._round: dict[ConsumeQueue, None] = {}  # that is being flushed, a few at a time
        self._is_recovering = True
        self.unsynced: dict[str, tuple[str, ...]] = {}
        self.flushed_bytes = 0

    def recovered(self) -> None:
        """Take the names of files that are there for durable from now on.

        A process that was killed may have created what recovery writes to, and not synced it.
        """
        self.flush()
        self._is_recovering = False

    def put(self, queue: ConsumeQueue, record: Appended) -> None:
        """Add the record's entry to the queue, in memory: about 0.4 us."""
        queue.put(record)
        self._with_tail[queue] = None
        if queue.tail_bytes >= self._tail_bytes_max:
            self._with_long_tail[queue] = None

    def put_all(self, queue: ConsumeQueue, records: Sequence[Appended]) -> None:
        """Add the entries of records that follow one another to the queue, in memory."""
        queue.put_all(records)
        self._has_more(queue)

    def put_run(self, queue: ConsumeQueue, run: AppendedRun) -> None:
        """Add the entries of a run's records to the queue, in memory."""
        queue.put_run(run)
        self._has_more(queue)

    def _has_more(self, queue: ConsumeQueue) -> None:
        self._with_tail[queue] = None
        if queue.tail_bytes >= self._tail_bytes_max:
            self._with_long_tail[queue] = None

    def put_at(self, queue: ConsumeQueue, queue_offset: int, record: Appended) -> None:
        """As `put`, at an offset that may leave a gap, for which blanks stand."""
        queue.fill_to(queue_offset)
        self.put(queue, record)

    def fill_damaged(self, queue: ConsumeQueue, queue_offset: int, span: DamagedSpan) -> None:
        """Let the queue go on at the offset; entries before it that lack point at the damage."""
        queue.fill_to(queue_offset, span.position, span.size)
        self._with_tail[queue] = None

    def flush_long(self) -> None:
        """Write the tails that got longer than the config allows.

        Raises:
            OSError: the tails from the one that failed on are still in memory.
        """
        while self._with_long_tail:
            self._flush(next(iter(self._with_long_tail)))

    def flush(self) -> None:
        """Write all tails to their files.

        Raises:
            OSError: the tails from the one that failed on are still in memory.
        """
        for queue in list(self._with_tail):
            self._flush(queue)

    def flush_some(self) -> None:
        """Write some of the tails: at most `FILES_PER_FLUSH`, of them `NEW_FILES_PER_FLUSH` new.

        The tails that there are when none is being flushed make a round, and those of the calls
        after it, until all of them are written, take their turn from it.

        Raises:
            OSError: as `flush`; the round goes on with the next call.
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
        """Tell whether a round of `flush_some` has a rest."""
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
        self._has_no_tail(queue)
        directories: tuple[str, ...] = ()
        if is_new or self._is_recovering:
            directories = queue.directories()
        for name in names:
            self.unsynced[name] = self.unsynced.get(name) or directories

    def _has_no_tail(self, queue: ConsumeQueue) -> None:
        for waiting in (self._with_tail, self._with_long_tail, self._round):
            waiting.pop(queue, None)

    def cut(self, queue: ConsumeQueue) -> None:
        """Remove what the queue's files hold behind its last entry.

        Removed files are gone for good when this returns: brought back by a crash, their entries
        would look like those of later records that came to the same places of the log.
        """
        names_before = [queue.segments.name(start) for start in queue.segments.starts()]
        for name in queue.cut():
            self.unsynced.setdefault(name, ())
        removed = names_before[len(queue.segments.starts()) :]
        for name in removed:
            self.unsynced.pop(name, None)
        if removed:
            self._disk.sync_directory(queue.segments.directory)

    def hide_first_files(self, queue: ConsumeQueue, count: int) -> list[int]:
        """Forget the queue's oldest files, which are the caller's to unlink; return their starts.

        See `kourou.store.expiry`.
        """
        starts = queue.segments.hide_first(count)
        for start in starts:
            self.unsynced.pop(queue.segments.name(start), None)
        return starts

    def _forget_tail(self, queue: ConsumeQueue) -> None:
        """Write and sync nothing more of the queue."""
        self._has_no_tail(queue)
        for start in queue.segments.starts():
            self.unsynced.pop(queue.segments.name(start), None)
