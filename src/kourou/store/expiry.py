"""Removal of expired files: segments of the log, then queue files that refer only to those.

The caller runs these steps, a few files at a time, and never two steps concurrently:

    step             thread      effect                              a crash after it leaves
    count_expired    any thread  reads the segments' dates           everything
    hide_segment     the loop    the log begins later for readers    everything
    remove           any thread  unlinks, oldest first               a log that begins here or later
    sync_log         any thread  makes the removal durable           a log that begins later
    find_expired     any thread  queues begin later for readers      the same; the next start looks
    hide_files       the loop    queues drop their oldest files      the same
    remove           any thread  unlinks, oldest first               queues that begin here or later

The log is removed first, durably: if a crash restored a segment after its queue files were removed,
its messages would be in no queue. In the order used here nothing is lost: readers skip entries
whose records are gone, and the next run removes their files. A crash can restore only the newest of
the removed files, so there is never a gap.

A reader that is reading a file during its removal gets the data, or an answer that the message was
removed. A file that cannot be unlinked is shown again; the next run retries it.

Source: CommitLog.deleteExpiredFile, ConsumeQueueStore.CleanConsumeQueueService, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kourou.disk import Disk
from kourou.store.log.commitlog import CommitLog
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import COMMITLOG
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.queues.extended_queue import ExtendedQueue
from kourou.store.retention import RetentionConfig, count_expired

log = logging.getLogger(__name__)


@dataclass(slots=True)
class HiddenFiles:
    """The oldest files of a segment list, hidden from its readers until they are removed.

    Attributes:
        segments: the segment list.
        starts: the start of each file not removed yet, oldest first.
    """

    segments: SegmentList
    starts: list[int]


class Expiry:
    """Removes the oldest files of one open store."""

    def __init__(
        self,
        disk: Disk,
        log_: CommitLog,
        queues: ConsumeQueueTable,
        durable_position: Callable[[], int],
    ) -> None:
        """Create the remover for the files of a log and its queues.

        Args:
            disk: the disk that holds them.
            log_: the commit log.
            queues: all of its queues.
            durable_position: returns the log position below which all records and their queue
                entries are durable.
        """
        self._disk = disk
        self._log = log_
        self._queues = queues
        self._durable_position = durable_position

    @property
    def log_min_position(self) -> int:
        """The byte at which the log begins."""
        return self._log.min_position

    @property
    def awaits_queues(self) -> bool:
        """Whether a full segment must stay because queue entries of its records are not durable."""
        segments = self._log.segments
        return self._durable_position() < segments.end - segments.file_bytes

    def count_expired(self, config: RetentionConfig, now_ms: int) -> int:
        """Return how many of the oldest segments a run may remove; on any thread.

        Excludes the last segment, and any with a record whose queue entry is not durable: a power
        cut would lose the entry, recovery could not rebuild it, and its offset would be assigned
        twice.

        Raises:
            OSError: a segment's date cannot be read.
        """
        segments = self._log.segments
        durable = self._durable_position()
        starts = segments.starts()
        dates = (self._disk.modified_at_ms(segments.name(start)) for start in starts)
        removable = sum(start + segments.file_bytes <= durable for start in starts[:-1])
        return min(count_expired(dates, config, now_ms), removable)

    def hide_segment(self) -> HiddenFiles:
        """Hide the log's first segment from readers; on the store's thread."""
        return HiddenFiles(self._log.segments, self._log.segments.hide_first(1))

    def remove(self, hidden: Iterable[HiddenFiles]) -> None:
        """Unlink the files; on any thread. After an error `show_remaining` must be called.

        Raises:
            OSError: some files remain.
        """
        for files in hidden:
            while files.starts:
                with suppress(FileNotFoundError):
                    self._disk.unlink(files.segments.name(files.starts[0]))
                del files.starts[0]

    def show_remaining(self, hidden: Iterable[HiddenFiles]) -> None:
        """Show the files again that could not be removed; on the store's thread."""
        for files in hidden:
            files.segments.show_first(files.starts)

    def sync_log(self) -> None:
        """Make the removal of segments durable; on any thread.

        Raises:
            OSError: the store should accept no more writes: other changes in that directory that
                were not durable may never become durable.
        """
        self._disk.sync_directory(COMMITLOG)

    def queues(self) -> list[ConsumeQueue]:
        """Return all current queues; on the store's thread."""
        return list(self._queues)

    def find_expired(self, queues: Sequence[ConsumeQueue]) -> list[tuple[ConsumeQueue, int]]:
        """Advance the queues' minimum offsets, and find those with expired files; on any thread.

        Returns:
            Each queue whose oldest files refer only to removed records, with the number of such
            files. A queue that cannot be read is left out and logged.
        """
        begin = self._log.min_position
        found = []
        for queue in queues:
            if self._queues.get(queue.topic, queue.queue_id) is not queue:
                continue  # its topic was deleted meanwhile, and perhaps created again
            try:
                queue.correct_min_offset(begin)
                count = queue.count_expired_files(begin)
            except OSError as error:
                directory = queue.segments.directory
                log.warning("consumequeue.look_failed directory=%s error=%s", directory, error)
                continue
            if count:
                found.append((queue, count))
        return found

    def hide_files(self, found: Sequence[tuple[ConsumeQueue, int]]) -> list[HiddenFiles]:
        """Hide the given number of files of each queue; on the store's thread.

        None of the topics may have been deleted since `find_expired`.
        """
        hidden = [
            HiddenFiles(queue.segments, self._queues.hide_first_files(queue, count))
            for queue, count in found
        ]
        return hidden + [
            HiddenFiles(queue.extension.segments, queue.hide_extension())
            for queue, _ in found
            if isinstance(queue, ExtendedQueue)
        ]
