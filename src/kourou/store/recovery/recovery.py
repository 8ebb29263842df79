"""Recovery at the opening of a store: finds the log's end and makes the queues agree with the log.

    found                          meaning                     action
    no `abort`                     the last stop was clean     scan from the last record with a
                                                               queue entry
    `abort`                        a kill or a power cut       scan from the checkpoint's record
    ... with a failed sync, or     the page cache may differ   first drop the scanned segments from
    after Java                     from the device             the cache; otherwise only the part
                                                               not known to be synced
    no record, below the known     damage                      skip and log it; its queue entries
    durable end                                                point at it
    ... none up to the durable     the last record is damaged  the same, up to that end
    end, but bytes in each page
    ... zeros or no file there     the log lost its end        refuse to open; nothing is changed
    no record, above that end      an incomplete append        the log ends here: zero the rest and
                                                               remove later segments
    record without queue entry     the entry was in memory     rebuild the entry
    queue entry beyond the log     its record was lost         zero the entry
    queue lacks entries before     its files were lost, or     scan again from the log's start
    the scan, or ends strangely    its last entry is damaged
    fewer queue files than         files were lost, or an      the same
    recorded, or other begins      entry is damaged

Known durable is everything up to the checkpoint's synced position and up to its record, and after a
clean stop the whole log. Data above it is synced before recovery relies on it.

`scan_start` determines where the scan begins; `replay` rebuilds the entries.

Source: DefaultMessageStore.recover, CommitLog.recoverNormally and recoverAbnormally,
apache/rocketmq 5.5.0. Unlike Java, this trusts the checkpoint and does not trust the log above it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.protocol.record.keys import is_visible
from kourou.store.config import StoreConfig
from kourou.store.formats import BLANK_ENTRY_SIZE, Checkpoint, QueueEntry
from kourou.store.log.commitlog import CommitLog
from kourou.store.log.damage import DamagedSpan
from kourou.store.log.log_scan import LogScan, used_bytes
from kourou.store.paths import COMMITLOG, CONSUMEQUEUE
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.recovery.queue_totals import has_other_begins, lacks_files
from kourou.store.recovery.replay import Replay
from kourou.store.recovery.scan_start import clean_start, last_entry, unclean_start
from kourou.store.state.abort_file import LastRun, note_failed_sync, noted_syncs
from kourou.store.state.file_sizes import check_log_sizes, check_queue_sizes
from kourou.store.state.store_state import StoreState

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called at intervals with (bytes scanned, bytes to scan)."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The report of a recovery.

    Attributes:
        last_run: how the last run ended.
        records_scanned: whole records that were read and verified.
        truncated_bytes: bytes of torn or lost appends that were removed, without the zeros at the
            end of a file.
        redispatched: queue entries that were rebuilt.
        end: the end of the log.
        last: the last scanned record with a queue entry; None if there is none.
        last_store_at_ms: the latest store time of the scanned records.
        scanned_from: the position of the scan's start: records from there on were verified.
        damaged: the skipped spans, in log order.
    """

    last_run: LastRun
    records_scanned: int
    truncated_bytes: int
    redispatched: int
    end: int
    last: AppendedRecord | None
    last_store_at_ms: int
    scanned_from: int
    damaged: tuple[DamagedSpan, ...]

    @property
    def was_clean(self) -> bool:
        """Whether the last stop was clean."""
        return self.last_run.was_clean


class Recovery:
    """One recovery; the given log and queues are empty before `run` and ready for use after it."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        log_: CommitLog,
        queues: ConsumeQueueTable,
        *,
        checkpoint: Checkpoint,
        state: StoreState | None,
        progress: Progress | None,
        last_run: LastRun,
    ) -> None:
        self._disk = disk
        self._config = config
        self._log = log_
        self._segments = log_.segments
        self._queues = queues
        self._checkpoint = checkpoint
        self._state = state
        self._deleted_topics = state.deleted_topics if state is not None else {}
        self._progress = progress
        self._last_run = last_run
        self._was_clean = last_run.was_clean
        self._start_position = 0
        self._durable_end = 0
        self._after_gap: list[int] = []
        self._replay = self._new_replay()

    def run(self) -> RecoveryReport:
        """Recover the log and the queues.

        Raises:
            StoreConfigError: the store was created with other file sizes.
            CorruptRecordError: the log lost an end that was durable. The log is unchanged.
            OSError: a file cannot be read or written.
        """
        are_queues_whole = self._load()
        scan = self._scan_from(self._start() if are_queues_whole else self._segments.first)
        if self._was_clean and not self._is_full_scan and not self._has_all_queues(scan.position):
            log.warning("consumequeue.loss_found directory=%s", CONSUMEQUEUE)
            scan = self._scan_from(self._segments.first)
        if self._must_cut(scan) and self._end_untouched_queues(scan) and not self._is_full_scan:
            scan = self._scan_from(self._segments.first)
            self._end_untouched_queues(scan)
        self._refuse_loss(scan)
        self._report_damage(scan)
        truncated_bytes = self._cut_log(scan.position)
        self._log.start_at(scan.position)
        self._finish_queues(scan)
        if not self._is_full_scan and has_other_begins(
            self._queues, self._segments.first, self._state
        ):
            log.warning("consumequeue.other_begin_found directory=%s", CONSUMEQUEUE)
            for queue in self._queues:
                queue.min_offset = 0
            scan = self._scan_from(self._segments.first)
            self._end_untouched_queues(scan)
            self._finish_queues(scan)
        return RecoveryReport(
            self._last_run,
            self._replay.records,
            truncated_bytes,
            self._replay.entries,
            scan.position,
            self._replay.last,
            self._replay.last_store_at_ms,
            self._start_position,
            tuple(scan.damaged),
        )

    def _load(self) -> bool:
        """Load the files; tell whether those of the queues are complete."""
        self._after_gap = self._segments.load()
        durable = self._segments.end if self._was_clean else self._known_durable()
        are_recorded = self._state is not None
        check_log_sizes(
            self._disk, self._segments, are_recorded=are_recorded, durable_below=durable
        )
        damaged = self._queues.load()
        damaged += check_queue_sizes(self._disk, self._queues, are_recorded=are_recorded)
        _finish_deletions(self._queues, self._deleted_topics)
        if lacks_files(self._queues, self._checkpoint, self._state):
            log.warning("consumequeue.loss_found directory=%s", CONSUMEQUEUE)
            return False
        # A log that begins at 0 has lost no record to expiry, so all queue files must begin at 0.
        is_front_lost = (
            self._segments.first
            == 0
            < max((queue.segments.first for queue in self._queues), default=0)
        )
        return not is_front_lost and not (self._was_clean and damaged)

    # The known durable end, and the start of the scan -------------------------------------------

    def _known_durable(self) -> int:
        """Return the position below which the log is known to be durable."""
        queues_offset = self._checkpoint.queues_offset
        return max(queues_offset + 1 if queues_offset > 0 else 0, self._known_end())

    def _known_end(self) -> int:
        """Return the highest position known to be the end of a durable record; 0 if none is."""
        closed = self._state.closed if self._state is not None and self._was_clean else None
        return max(self._checkpoint.synced_position, closed.log_end if closed is not None else 0)

    def _start(self) -> int:
        where = (self._disk, self._segments, self._checkpoint)
        if not self._was_clean:
            return unclean_start(*where, last_run=self._last_run)
        last = last_entry(self._queues)
        return clean_start(*where, last, last_run=self._last_run)

    @property
    def _is_full_scan(self) -> bool:
        return self._start_position == self._segments.first

    # The scan ----------------------------------------------------------------------------------

    def _scan_from(self, start: int) -> LogScan:
        """Scan to the last whole record; if a queue lacks earlier entries, scan the whole log."""
        self._durable_end = max(self._durable_end, self._known_durable())
        scan = self._scan(start)
        if not self._replay.incomplete:
            return scan
        for queue in self._replay.incomplete:
            log.warning("consumequeue.entries_missed directory=%s", queue.segments.directory)
        return self._scan(self._segments.first)

    def _scan(self, start: int) -> LogScan:
        self._start_position = start
        self._replay = self._new_replay()
        if not self._was_clean:
            self._make_durable(start)
        end = self._durable_end
        is_end = end == self._known_end()
        scan = LogScan(self._disk, self._segments, start, durable_below=end, is_end=is_end)
        self._replay.run(scan, lambda: self._report_progress(scan.position))
        return scan

    def _new_replay(self) -> Replay:
        return Replay(self._queues, self._config, self._deleted_topics, is_full=self._is_full_scan)

    def _report_progress(self, position: int) -> None:
        if self._progress is not None:
            start = self._start_position
            self._progress(position - start, self._segments.end - start)

    def _make_durable(self, start: int) -> None:
        """Ensure that the data from `start` on survives a power cut before it is read.

        A sync may have failed just before the kill, without a note. Data not known to be synced is
        therefore read from the device, not from the cache.
        """
        if not self._last_run.is_cache_suspect:
            trusted_below = max(start, self._checkpoint.synced_position)
        else:
            trusted_below = start
        with noted_syncs(self._disk, self._last_run):
            for at in self._segments.starts():
                name, end = self._segments.name(at), at + self._segments.file_bytes
                if end <= start:
                    continue
                try:
                    self._disk.sync(name)
                except OSError:
                    note_failed_sync(self._disk)  # the next start must not trust the cache
                    raise
                if end > trusted_below:
                    self._disk.drop_cache(name, max(0, trusted_below - at))

    # After the scan ----------------------------------------------------------------------------

    def _has_all_queues(self, end: int) -> bool:
        """Tell whether the queues have as many entries as at the last close, if recorded."""
        closed = self._state.closed if self._state is not None else None
        if closed is None or closed.log_end != end:
            return True
        return closed.queue_entries == sum(queue.max_offset for queue in self._queues)

    def _refuse_loss(self, scan: LogScan) -> None:
        """Raise if durable records are missing, because that is not a torn append."""
        if scan.position >= self._durable_end:
            return
        raise CorruptRecordError(
            self._segments.name(scan.position),
            scan.position % self._segments.file_bytes,
            f"{scan.problem or 'no record'}, but the log was durable to byte {self._durable_end}; "
            "restore the file from a copy, or discard the rest with `kourou store truncate`",
        )

    def _report_damage(self, scan: LogScan) -> None:
        for span in scan.damaged:
            log.error(
                "commitlog.damage_found file=%s byte=%d size=%d reason=%s",
                self._segments.name(span.position),
                span.position % self._segments.file_bytes,
                span.size,
                span.reason,
            )

    def _cut_log(self, end: int) -> int:
        """Remove the data after the last whole record durably; return the number of bytes."""
        cut = sum(
            used_bytes(self._disk, self._segments, max(start, end))
            for start in (*self._segments.starts(), *self._after_gap)
            if start + self._segments.file_bytes > end
        )
        if cut or self._after_gap or self._segments.end - end > self._segments.file_bytes:
            log.info("commitlog.truncated position=%d bytes=%d", end, cut)
            self._segments.remove(self._after_gap)
            for name in self._segments.truncate(end):
                self._disk.sync(name)
        if not self._was_clean or cut:
            self._disk.sync_directory(COMMITLOG)
        return cut

    def _must_cut(self, scan: LogScan) -> bool:
        """Tell whether queues may have entries of records that the log lacks."""
        is_as_left = self._was_clean and not scan.problem and self._replay.records > 0
        return not is_as_left or self._is_full_scan or bool(scan.damaged)

    def _end_untouched_queues(self, scan: LogScan) -> bool:
        """Let the queues without a scanned record end below the scan's start.

        Returns:
            Whether a queue ends with an entry that no crash explains: a damaged entry, which only a
            scan of the whole log can rebuild. Removing it would lose a message.
        """

        def is_strange(entry: QueueEntry) -> bool:
            at = entry.physical_offset
            is_lost = scan.position <= at < self._segments.end
            is_blank = not at and entry.size in (0, BLANK_ENTRY_SIZE)
            return not (is_lost or is_blank or _points_at_damage(scan.damaged, [], entry))

        strange = None
        for queue in self._queues:
            if queue not in self._replay.touched:
                queue.restart_at(queue.find_end_before(self._start_position))
                if queue.end_of_matching(is_strange) > queue.max_offset:
                    strange = queue
        if strange is not None:
            log.warning("consumequeue.entry_damaged directory=%s", strange.segments.directory)
        return strange is not None

    def _finish_queues(self, scan: LogScan) -> None:
        """Cut the queues at the log's end, and find their minimum offsets."""
        must_cut = self._must_cut(scan)
        self._add_damaged_ends(scan)
        self._queues.recovered()
        for queue in list(self._queues):
            if must_cut and self._has_data_after_end(queue):
                self._queues.truncate(queue)
            if not queue.max_offset:
                self._queues.remove(queue)
                continue
            queue.correct_min_offset(self._segments.first)
            queue.next_offset = queue.max_offset

    def _add_damaged_ends(self, scan: LogScan) -> None:
        """Add entries for damaged records at the end of a queue, so that no offset is reused.

        The queue is known from its entry, if that reached the file, else from the record's header,
        if its offset is the next one of its queue.
        """
        if not scan.damaged:
            return
        for queue in self._queues:
            spans: list[DamagedSpan] = []
            end = queue.end_of_matching(partial(_points_at_damage, scan.damaged, spans))
            if spans:
                self._queues.fill_damaged(queue, end, spans[0])
        for span in scan.damaged:
            header = scan.damaged_headers.get(span.position)
            if header is None or not is_visible(header.sys_flag):
                continue
            named = self._queues.get(header.topic, header.queue_id)
            if named is not None and named.max_offset == header.queue_offset:
                self._queues.fill_damaged(named, header.queue_offset + 1, span)

    def _has_data_after_end(self, queue: ConsumeQueue) -> bool:
        """Tell whether the queue's files hold data after its last entry."""
        segments, position = queue.segments, queue.file_end * queue.entry_bytes
        if not segments.first <= position < segments.end:
            return False
        is_last_file = position + segments.file_bytes >= segments.end
        return not is_last_file or used_bytes(self._disk, segments, position) > 0


def _points_at_damage(
    damaged: Sequence[DamagedSpan], spans: list[DamagedSpan], entry: QueueEntry
) -> bool:
    """Tell whether the entry points at a damaged span, and append that span to `spans`."""
    at = bisect_right(damaged, entry.physical_offset, key=lambda span: span.position) - 1
    if at < 0 or entry.physical_offset >= damaged[at].position + damaged[at].size:
        return False
    spans.append(damaged[at])
    return entry.size > 0


def _finish_deletions(queues: ConsumeQueueTable, deleted_below: Mapping[str, int]) -> None:
    """Remove the remaining files of topics whose deletion was noted but not completed.

    A crash interrupted these deletions; see `kourou.store.deletion`.

    Args:
        queues: the loaded queues.
        deleted_below: by topic, the log position below which its records are deleted.

    Raises:
        OSError: a file cannot be read or removed.
    """
    for topic, below in deleted_below.items():
        existing = queues.of_topic(topic)
        outdated = [queue for queue in existing if _is_outdated(queue, below)]
        if len(outdated) < len(existing):  # the topic was created again
            for queue in outdated:
                queues.remove(queue)
        elif queues.has_files(topic):
            log.info("topic.deletion_finished name=%s queues=%d", topic, len(outdated))
            queues.forget(topic)
            queues.remove_files(topic)


def _is_outdated(queue: ConsumeQueue, physical_offset: int) -> bool:
    """Tell whether the queue's files begin with a record below that position.

    True for files without an entry: they remain from a removal, or belong to a newer queue, which
    the scan rebuilds.
    """
    entry = queue.first_entry()
    return entry is None or entry.physical_offset < physical_offset
