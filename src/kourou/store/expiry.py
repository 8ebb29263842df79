"""Removing what expired: segments of the log, then the files of queues that name nothing else.

Whoever runs it takes these steps, a few files at a time, and never two of them at once:

    step             where       what it does                        a crash after it leaves
    count_expired    any thread  asks for the segments' dates        everything
    hide_segment     the loop    the log begins later for readers    everything
    remove           any thread  unlinks, oldest first               a log that begins here or later
    sync_log         any thread  those segments are gone for good    a log that begins later
    look_at          any thread  queues begin later for readers      the same; the next start looks
    hide_files       the loop    queues forget their oldest files    the same
    remove           any thread  unlinks, oldest first               queues that begin here or later

The log goes first, durably: if a crash brought a segment back whose queue files are gone, its
messages would be in no queue. The other way round nothing is lost: entries that name nothing are
passed over, and their files go with the next run. What a crash brings back of either is the end of
what was removed, so that there is never a gap.

A reader that is in a file when it goes gets what it had asked for, or is told that the message was
removed. A file that cannot be unlinked is shown again, and tried again by the next run.

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
    """The oldest files of a list, which it does not show any more.

    Attributes:
        segments: the list.
        starts: where they begin, oldest first; those that were removed are taken off.
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
        """Remove files of that log and these queues.

        Args:
            disk: where they are.
            log_: the log.
            queues: its queues.
            durable_position: records below are durable, and so are their queue entries.
        """
        self._disk = disk
        self._log = log_
        self._queues = queues
        self._durable_position = durable_position

    @property
    def log_min_position(self) -> int:
        """Where the log begins."""
        return self._log.min_position

    @property
    def awaits_queues(self) -> bool:
        """Whether a full segment must stay since queue entries of its records are not durable."""
        segments = self._log.segments
        return self._durable_position() < segments.end - segments.file_bytes

    def count_expired(self, config: RetentionConfig, now_ms: int) -> int:
        """Return how many of the oldest segments a run may remove; on any thread.

        Never the last one, nor one with a record whose queue entry is not durable: a power loss
        would take the entry, nothing could make it again, and its offset would be given out twice.

        Raises:
            OSError: a segment's date cannot be read.
        """
        segments = self._log.segments
        done = self._durable_position()
        starts = segments.starts()
        dates = (self._disk.modified_at_ms(segments.name(start)) for start in starts)
        may_go = sum(start + segments.file_bytes <= done for start in starts[:-1])
        return min(count_expired(dates, config, now_ms), may_go)

    def hide_segment(self) -> HiddenFiles:
        """Let the log begin with its second segment; on the store's thread."""
        return HiddenFiles(self._log.segments, self._log.segments.hide_first(1))

    def remove(self, hidden: Iterable[HiddenFiles]) -> None:
        """Unlink the files; on any thread. After an error `show_rest` must be called.

        Raises:
            OSError: some are still there.
        """
        for files in hidden:
            while files.starts:
                with suppress(FileNotFoundError):
                    self._disk.unlink(files.segments.name(files.starts[0]))
                del files.starts[0]

    def show_rest(self, hidden: Iterable[HiddenFiles]) -> None:
        """Take back the files that could not be removed; on the store's thread."""
        for files in hidden:
            files.segments.show_first(files.starts)

    def sync_log(self) -> None:
        """Make the removal of segments durable; on any thread.

        Raises:
            OSError: the store should take no more writes: what else was not durable in that
                directory may never become so.
        """
        self._disk.sync_directory(COMMITLOG)

    def queues(self) -> list[ConsumeQueue]:
        """Return all queues there are now; on the store's thread."""
        return list(self._queues)

    def look_at(self, queues: Sequence[ConsumeQueue]) -> list[tuple[ConsumeQueue, int]]:
        """Move where the queues begin for readers to the log's begin; on any thread.

        Returns:
            Those whose oldest files name nothing that is there, and how many such files. A queue
            that cannot be read is left out, and said so.
        """
        begin = self._log.min_position
        found = []
        for queue in queues:
            if self._queues.get(queue.topic, queue.queue_id) is not queue:
                continue  # its topic was deleted meanwhile, and may have been made anew
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
        """Let each queue begin behind so many of its files; on the store's thread.

        Nobody may have deleted one of the topics since `look_at`.
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
