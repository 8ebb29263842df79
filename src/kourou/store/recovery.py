"""Finding, when a store is opened, where its log ends, and making its queues agree with it.

    found                          meaning                     done
    no `abort`                     the last stop was clean     scan from the last record that a
                                                               queue names
    `abort`                        killed, or power was lost   scan from the last segment that
                                                               begins below the checkpoint
    bytes that are no record       an append was cut short     zeroed, later segments removed
    ... below the checkpoint       they were durable once      refused: nothing is changed
    record without queue entry     the entry was in memory     the entry is made
    queue entry beyond the log     its record was lost         zeroed
    queue lacks what lies before   its files were lost         scan again from the log's start
    the scan

What the scan reads is what the device holds: the segments are synced and then forgotten by the
cache first, since after a failed sync the cache may show records that the device never got.

Source: DefaultMessageStore.recover, CommitLog.recoverNormally and recoverAbnormally,
apache/rocketmq 5.5.0, and where this differs: the checkpoint is trusted, the log above it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.model.sysflag import INNER_BATCH
from kourou.protocol.message_layout import RecordHeader
from kourou.store.abort_file import LastRun
from kourou.store.commitlog import CommitLog
from kourou.store.config import StoreConfig
from kourou.store.consumequeue import ConsumeQueue
from kourou.store.consumequeue_table import ConsumeQueueTable
from kourou.store.damage import DamagedSpan
from kourou.store.dispatch import (
    Appended,
    is_visible,
    light_queues,
    message_count,
    queue_tags_code,
)
from kourou.store.file_sizes import check_log_sizes, check_queue_sizes
from kourou.store.formats import Checkpoint
from kourou.store.log_scan import LogScan, used_bytes
from kourou.store.paths import COMMITLOG, CONSUMEQUEUE
from kourou.store.store_state import StoreState

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told (bytes scanned, bytes to scan) now and then."""

_TIMESTAMP_SLACK_MS = 3_000
_PROGRESS_RECORDS = 4096
_GAP_ENTRIES_MAX = 1024


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a store found and did.

    Attributes:
        last_run: how the store was found.
        records_scanned: whole records that were read and checked.
        truncated_bytes: bytes of torn or lost appends that were cut off, zeros at the end of a
            file not counted.
        redispatched: queue entries made or made again.
        end: where the log goes on.
        last: the last record that a queue names, of those that were scanned.
        last_store_at_ms: the latest store time of the records scanned.
        scanned_from: where the scan began: records from there on were checked.
        damaged: what was stepped over, in log order.
    """

    last_run: LastRun
    records_scanned: int
    truncated_bytes: int
    redispatched: int
    end: int
    last: Appended | None
    last_store_at_ms: int
    scanned_from: int
    damaged: tuple[DamagedSpan, ...]

    @property
    def was_clean(self) -> bool:
        """Whether the last stop was in order."""
        return self.last_run.was_clean


class Recovery:
    """One recovery; the parts it is given are empty before, and ready for use after `run`."""

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
        self._touched: set[ConsumeQueue] = set()
        self._lacking: list[ConsumeQueue] = []  # have not what lies before the scan
        self._start_position = 0
        self._is_full_scan = False
        self._behind_gap: list[int] = []
        self._records = 0
        self._redispatched = 0
        self._last: Appended | None = None
        self._last_store_at_ms = 0

    def run(self) -> RecoveryReport:
        """Recover the log and the queues.

        Raises:
            StoreConfigError: the store was made with other file sizes.
            CorruptRecordError: records that were durable cannot be read. The log is unchanged.
            OSError: a file cannot be read or written.
        """
        are_queues_whole = self._load()
        scan = self._scan_from(self._start() if are_queues_whole else self._segments.first)
        if self._was_clean and not self._is_full_scan and not self._has_all_queues(scan.position):
            log.warning("consumequeue.loss_found directory=%s", CONSUMEQUEUE)
            scan = self._scan_from(self._segments.first)
        self._refuse_loss(scan)
        truncated_bytes = self._cut_log(scan.position)
        self._log.start_at(scan.position)
        self._finish_queues(scan)
        return RecoveryReport(
            self._last_run,
            self._records,
            truncated_bytes,
            self._redispatched,
            scan.position,
            self._last,
            self._last_store_at_ms,
            self._start_position,
            (),
        )

    def _load(self) -> bool:
        """Take up the files; tell whether the queues' are as they must be."""
        self._behind_gap = self._segments.load()
        durable = self._segments.end if self._was_clean else self._checkpoint.queues_offset
        are_recorded = self._state is not None
        check_log_sizes(
            self._disk, self._segments, are_recorded=are_recorded, durable_below=durable
        )
        damaged = self._queues.load()
        damaged += check_queue_sizes(self._disk, self._queues, are_recorded=are_recorded)
        self._finish_deletions()
        # While no message has expired, no queue begins later than the log.
        is_front_lost = (
            self._segments.first
            == 0
            < max((queue.segments.first for queue in self._queues), default=0)
        )
        return not is_front_lost and not (self._was_clean and damaged)

    def _finish_deletions(self) -> None:
        """Remove what is left of topics where a crash came between the note and the removal."""
        for topic, below in self._deleted_topics.items():
            queues = self._queues.of_topic(topic)
            gone = [queue for queue in queues if _is_from_before(queue, below)]
            if len(gone) < len(queues):  # somebody made the topic again
                for queue in gone:
                    self._queues.remove(queue)
            elif self._queues.has_files(topic):
                log.info("topic.deletion_finished name=%s queues=%d", topic, len(gone))
                self._queues.forget(topic)
                self._queues.remove_files(topic)

    # Where the scan begins ---------------------------------------------------------------------

    def _start(self) -> int:
        return self._clean_start() if self._was_clean else self._unclean_start()

    def _clean_start(self) -> int:
        """Return the place of the last record that a queue names."""
        start = self._segments.first
        for queue in self._queues:
            queue.restart_at(queue.find_end())
            last = queue.entry(queue.max_offset - 1)
            if last is not None:
                start = max(start, last.physical_offset)
        return start if start < self._segments.end else self._segments.first

    def _unclean_start(self) -> int:
        """Return the start of the last segment whose first record is below the checkpoint."""
        for start in reversed(self._segments.starts()):
            if 0 < self._checkpoint.queues_offset < start:
                continue
            for header, _ in LogScan(self._disk, self._segments, start):
                if self._is_below_checkpoint(header):
                    return start
                break
        return self._segments.first

    def _is_below_checkpoint(self, header: RecordHeader) -> bool:
        checkpoint = self._checkpoint
        if checkpoint.queues_offset > 0:
            return header.physical_offset <= checkpoint.queues_offset
        # Older than 5.5: times only, which Java takes three seconds back.
        at_ms = min(checkpoint.log_at_ms, checkpoint.queues_at_ms) - _TIMESTAMP_SLACK_MS
        return header.store_at_ms <= max(at_ms, 0)

    # The scan ----------------------------------------------------------------------------------

    def _scan_from(self, start: int) -> LogScan:
        """Scan to the last whole record; where a queue lacks what lies before, scan everything."""
        scan = self._scan(start)
        if not self._lacking:
            return scan
        for queue in self._lacking:
            log.warning("consumequeue.entries_missed directory=%s", queue.segments.directory)
        return self._scan(self._segments.first)

    def _scan(self, start: int) -> LogScan:
        self._start_position = start
        self._is_full_scan = start == self._segments.first
        self._touched.clear()
        self._lacking.clear()
        self._records = self._redispatched = 0
        if not self._was_clean:
            self._read_from_device(start)
        scan = LogScan(self._disk, self._segments, start)
        for header, buffer in scan:
            self._records += 1
            self._last_store_at_ms = max(self._last_store_at_ms, header.store_at_ms)
            self._dispatch(header, buffer)
            if self._lacking:
                break
            if self._progress is not None and self._records % _PROGRESS_RECORDS == 0:
                self._progress(scan.position - start, self._segments.end - start)
        return scan

    def _read_from_device(self, start: int) -> None:
        """See to it that what is read from `start` on would survive a power cut."""
        for at in self._segments.starts():
            if at + self._segments.file_bytes > start:
                self._disk.sync(self._segments.name(at))
                self._disk.forget(self._segments.name(at))

    def _dispatch(self, header: RecordHeader, buffer: bytes) -> None:
        """Make the queue entries of one record."""
        at, topic = header.physical_offset, header.topic
        if not is_visible(header.sys_flag) or at < self._deleted_topics.get(topic, 0):
            return
        start = header.properties_start
        properties = buffer[start : start + header.properties_size]
        code = queue_tags_code(
            topic.encode(), properties, header.store_at_ms, self._config.delay_levels_ms
        )
        record = Appended(
            at,
            header.queue_offset,
            header.total_size,
            topic,
            header.queue_id,
            code,
            header.store_at_ms,
            message_count(header.sys_flag, properties),
        )
        if header.sys_flag & INNER_BATCH and not self._queues.of_topic(topic):
            self._queues.keep_batches(topic)
        self._replay(topic, header.queue_id, header.queue_offset, record)
        for name, queue_offset in light_queues(properties):
            self._replay(name, 0, queue_offset, record)
        self._last = record

    def _replay(self, topic: str, queue_id: int, queue_offset: int, record: Appended) -> None:
        """Put the entry where its record says, whatever the file holds there."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            if not self._queues.accepts(topic, queue_id):
                return
            queue = self._queues.get_or_add(topic, queue_id)
        is_first = queue not in self._touched
        if is_first and not self._touch(queue, queue_offset, record.physical_offset):
            self._lacking.append(queue)
            return
        if queue_offset == 0 < queue.max_offset:
            # Java deleted the topic, which leaves no note, and somebody made it again.
            self._reset(queue, 0)
        gap = queue_offset - queue.max_offset
        if gap < 0 or gap > _GAP_ENTRIES_MAX:
            log.error(
                "record.skipped physical_offset=%d queue=%s queue_offset=%d expected=%d",
                record.physical_offset,
                queue.segments.directory,
                queue_offset,
                queue.max_offset,
            )
            return
        self._queues.put_at(queue, queue_offset, record)
        self._queues.flush_long()
        self._redispatched += 1

    def _touch(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Let the queue go on at the first scanned record's offset.

        Returns:
            Whether it holds what lies before, or can be without.
        """
        self._touched.add(queue)
        if queue.holds_before(queue_offset, physical_offset):
            queue.restart_at(queue_offset)
        elif self._is_full_scan or queue_offset == 0:
            self._reset(queue, queue_offset)
        else:
            return False
        return True

    def _reset(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Begin the queue anew; what it held before is no more, in the log or for its readers."""
        queue.restart_at(0)
        self._queues.cut(queue)
        queue.start_at(queue_offset)

    # After the scan ----------------------------------------------------------------------------

    def _has_all_queues(self, end: int) -> bool:
        """Tell whether the queues hold as much as when this store was closed, if that is known."""
        closed = self._state.closed if self._state is not None else None
        if closed is None or closed.log_end != end:
            return True
        return closed.queue_entries == sum(queue.max_offset for queue in self._queues)

    def _refuse_loss(self, scan: LogScan) -> None:
        """Refuse to go on where records are missing that were durable: that is no torn append."""
        closed = self._state.closed if self._state is not None and self._was_clean else None
        durable_to = max(
            self._checkpoint.queues_offset + 1 if self._checkpoint.queues_offset > 0 else 0,
            closed.log_end if closed is not None else 0,
        )
        if scan.position >= durable_to:
            return
        raise CorruptRecordError(
            self._segments.name(scan.position),
            scan.position % self._segments.file_bytes,
            f"{scan.problem or 'no record'}, but the log was durable to byte {durable_to}; restore "
            "the file from a copy, or remove `checkpoint` and config/kourou-store.json* to give "
            "up what follows",
        )

    def _cut_log(self, end: int) -> int:
        """Remove what lies behind the last whole record, durably; return how much that was."""
        cut = sum(
            used_bytes(self._disk, self._segments, max(start, end))
            for start in (*self._segments.starts(), *self._behind_gap)
            if start + self._segments.file_bytes > end
        )
        if cut or self._behind_gap or self._segments.end - end > self._segments.file_bytes:
            log.info("commitlog.truncated position=%d bytes=%d", end, cut)
            self._segments.remove(self._behind_gap)
            for name in self._segments.cut(end):
                self._disk.sync(name)
        if not self._was_clean or cut:
            self._disk.sync_directory(COMMITLOG)
        return cut

    def _finish_queues(self, scan: LogScan) -> None:
        """Cut the queues where the log ends, and find where they begin."""
        self._queues.recovered()
        is_as_left = self._was_clean and not scan.problem and self._records > 0
        must_cut = not is_as_left or self._is_full_scan
        for queue in list(self._queues):
            if queue not in self._touched and must_cut:
                queue.restart_at(queue.find_end_before(self._start_position))
            if must_cut:
                self._queues.cut(queue)
            if not queue.max_offset:
                self._queues.remove(queue)
                continue
            queue.correct_min_offset(self._segments.first)
            queue.next_offset = queue.max_offset


def _is_from_before(queue: ConsumeQueue, physical_offset: int) -> bool:
    """Tell whether the queue's files begin with a record below that place of the log.

    So are files without an entry: what is left of a removal, or of a newer queue, which the scan
    makes again.
    """
    entry = queue.first_entry()
    return entry is None or entry.physical_offset < physical_offset
