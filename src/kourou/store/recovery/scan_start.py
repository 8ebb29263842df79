"""Start of the recovery scan: the latest position that is certain to miss nothing.

    last stop                       the scan begins
    clean                           at the last record with a queue entry
    Kourou was killed               at the checkpoint's record: it and all records before it are
                                    durable, and so are their queue entries
    Java was killed                 at the last segment that begins at or below the checkpoint's
                                    record, but at most ten segments before the end
    unknown                         as after Java, without the limit
    no checkpoint, or a damaged one at the log's start; after Java with the same limit

Source: CommitLog.recoverNormally, recoverAbnormally and isMappedFileMatchedRecover,
MessageStoreConfig.commitLogRecoverMaxNum, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kourou.disk import Disk
from kourou.protocol.record.layout import RecordHeader
from kourou.store.formats import Checkpoint, QueueEntry
from kourou.store.log.log_scan import LogScan
from kourou.store.log.segment_list import SegmentList
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.state.abort_file import LastRun

_TIMESTAMP_SLACK_MS: Final = 3_000
_JAVA_SEGMENTS_MAX: Final = 10


def last_entry(queues: Iterable[ConsumeQueue]) -> QueueEntry | None:
    """Return the entry of the last record with a queue entry; correct after a clean stop only.

    Lets the queues continue after their last entries.
    """
    latest: QueueEntry | None = None
    for queue in queues:
        queue.restart_at(queue.find_end())
        entry = queue.entry(queue.max_offset - 1)
        if entry is not None and (latest is None or entry.physical_offset > latest.physical_offset):
            latest = entry
    return latest


def clean_start(
    disk: Disk,
    segments: SegmentList,
    checkpoint: Checkpoint,
    last: QueueEntry | None,
    *,
    last_run: LastRun,
) -> int:
    """Return the start of the scan after a clean stop; `last` is the queues' last entry."""
    if last_run.was_kourou and _is_reliable(disk, segments, checkpoint):
        return checkpoint.queues_offset
    if last is None:
        return segments.first
    if _is_record(disk, segments, last.physical_offset):
        return last.physical_offset
    return unclean_start(disk, segments, checkpoint, last_run=last_run)


def unclean_start(
    disk: Disk, segments: SegmentList, checkpoint: Checkpoint, *, last_run: LastRun
) -> int:
    """Return the start of the scan after a kill or a power cut."""
    if last_run.was_kourou and _is_reliable(disk, segments, checkpoint):
        return checkpoint.queues_offset
    oldest = segments.first
    if last_run.was_java_killed:
        oldest = max(oldest, segments.end - _JAVA_SEGMENTS_MAX * segments.file_bytes)
    for start in reversed(segments.starts()):
        if start <= oldest:
            break
        if 0 < checkpoint.queues_offset < start:
            continue
        for header, _ in LogScan(disk, segments, start):
            if _is_below(checkpoint, header):
                return start
            break
    return oldest


def _is_reliable(disk: Disk, segments: SegmentList, checkpoint: Checkpoint) -> bool:
    """Tell whether the checkpoint certainly refers to a record, even a damaged one."""
    at = checkpoint.queues_offset
    if not segments.first < at < segments.end:
        return False
    return checkpoint.synced_position > at or _is_record(disk, segments, at)


def _is_record(disk: Disk, segments: SegmentList, position: int) -> bool:
    if not segments.first <= position < segments.end:
        return False
    for header, _ in LogScan(disk, segments, position):
        return header.physical_offset == position
    return False


def _is_below(checkpoint: Checkpoint, header: RecordHeader) -> bool:
    if checkpoint.queues_offset > 0:
        return header.physical_offset <= checkpoint.queues_offset
    # Checkpoints before 5.5 have times only, from which Java subtracts three seconds.
    at_ms = min(checkpoint.log_at_ms, checkpoint.queues_at_ms) - _TIMESTAMP_SLACK_MS
    return header.store_at_ms <= max(at_ms, 0)
