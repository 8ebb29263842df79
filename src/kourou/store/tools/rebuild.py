"""Rebuilds the data derived from the log of a closed store: queues, key index, timer files.

Derived files can be removed at any time, once the state that declares them durable is removed:

    step       left by a crash after this step
    note       a store that recovers at the next start
    lower      the same: the checkpoint names no record, so that recovery reads the whole log
    remove     queues and index partly removed: the next start rebuilds them
    recover    queues and index agree with the log
    timers     the complete store; during this step the timer files may be missing, which the next
               start rebuilds

Queues without a record in the log keep their files, which alone contain the next offset. If the log
is damaged, all queues keep their files, and the entries are overwritten. Queue files with a size or
name that is impossible for the store's sizes are removed in any case.

Java records no deletions of topics: a topic that has records, but no config and no queue, is
recorded as deleted, so that it is not created again.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.disk import Disk
from kourou.protocol.record.keys import LIGHT_TOPIC_PREFIX, is_visible, light_queues
from kourou.store.formats import Checkpoint
from kourou.store.index.index_file import remove_index_from
from kourou.store.log.log_walk import PieceKind, Progress, walk_log, with_damage
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    CONSUMEQUEUE,
    INDEX,
    batch_queue_directory,
    extension_directory,
    is_safe_topic,
    queue_directory,
)
from kourou.store.queues.topic_table import named_topics
from kourou.store.state.checkpoint import lower_checkpoint
from kourou.store.state.file_sizes import find_sizes, log_files
from kourou.store.state.store_state import StoreStateFile
from kourou.store.timer.timer_rebuild import WaitingTimers
from kourou.store.tools.closed_store import (
    locked,
    rebuild_closed_timers,
    record_change,
    recover_and_close,
)


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """Result of a rebuild.

    Attributes:
        queues: number of consume queues.
        records: number of valid records in the log.
        damaged: number of damaged spans in the log.
        index_files: number of index files.
        timers: number of waiting scheduled messages.
    """

    queues: int
    records: int
    damaged: int
    index_files: int
    timers: int


def rebuild(
    disk: Disk, now_ms: int, *, pid: int, progress: Progress | None = None
) -> RebuildResult:
    """Rebuild queues, index and timer files of a closed store.

    Raises:
        StoreLockedError: another process has the store open; nothing was changed.
        StoreError: the store cannot be opened afterwards; the next start rebuilds missing files.
        OSError: a file cannot be read or written; the same.
    """
    waiting = WaitingTimers()
    with locked(disk):
        records, damaged = _remove_derived(disk, pid, progress, waiting)
    store = recover_and_close(disk, now_ms, pid=pid, progress=progress)
    queues = sum(map(len, store.reader.queues().values()))
    timers = rebuild_closed_timers(disk, now_ms, waiting)
    return RebuildResult(queues, records, damaged, len(disk.list(INDEX)), timers)


def _remove_derived(
    disk: Disk, pid: int, progress: Progress | None, waiting: WaitingTimers
) -> tuple[int, int]:
    """Remove the derived files, which the next start rebuilds.

    Returns:
        The number of valid records and of damaged spans in the log.
    """
    files = log_files(disk, COMMITLOG)
    queues: set[tuple[str, int]] = set()
    records = damaged = end = 0
    segment_bytes = find_sizes(disk).segment_bytes
    for piece in with_damage(walk_log(disk, files, segment_bytes, progress=progress)):
        damaged += piece.kind is PieceKind.DAMAGE
        header = piece.header
        if header is None:
            continue
        records, end = records + 1, piece.end
        if is_visible(header.sys_flag):
            queues.add((header.topic, header.queue_id))
            properties = header.properties(piece.buffer)
            waiting.add_record(header, properties)
            queues.update((name, 0) for name, _ in light_queues(properties))
    _note(disk, pid, {topic for topic, _ in queues}, end)
    # Declare all that was read durable, so that recovery skips damage instead of truncating there.
    lower_checkpoint(disk, Checkpoint(synced_position=end))
    for topic, queue_id in sorted(queues):
        # The queue offset of a damaged record may be in its entry only, which must be kept.
        if is_safe_topic(topic) and queue_id >= 0 and not damaged:
            _remove_files(disk, queue_directory(topic, queue_id))
            _remove_files(disk, batch_queue_directory(topic, queue_id))
            _remove_files(disk, extension_directory(topic, queue_id))
    _remove_invalid_files(disk)
    remove_index_from(disk, 0)
    return records, damaged


def _note(disk: Disk, pid: int, topics: set[str], end: int) -> None:
    """Make durable that the store is about to be rebuilt, and which topics were deleted."""
    state = StoreStateFile(disk).read()
    named = named_topics(disk)
    if state is None or named is None:
        record_change(disk, pid)
        return
    there = named.union(disk.list(CONSUMEQUEUE), disk.list(BATCH_CONSUMEQUEUE))
    gone = {one for one in topics - there if not one.startswith(LIGHT_TOPIC_PREFIX)}
    deleted = {**state.deleted_topics, **dict.fromkeys(gone, end)}
    record_change(disk, pid, deleted_topics=deleted)


def _remove_invalid_files(disk: Disk) -> None:
    """Remove queue files that are too long, or whose start is not a multiple of the file size."""
    sizes = find_sizes(disk)
    for root, file_bytes in (
        (CONSUMEQUEUE, sizes.queue_bytes),
        (BATCH_CONSUMEQUEUE, sizes.batch_queue_bytes),
    ):
        for topic in disk.list(root):
            for name in disk.list(f"{root}/{topic}"):
                for file in log_files(disk, f"{root}/{topic}/{name}"):
                    if file.start % file_bytes or file.size > file_bytes:
                        disk.unlink(file.name)
                        disk.sync_directory(f"{root}/{topic}/{name}")


def _remove_files(disk: Disk, directory: str) -> None:
    names = disk.list(directory)
    for name in names:
        disk.unlink(f"{directory}/{name}")
    if names:
        disk.sync_directory(directory)
