"""Making what is derived from the log of a closed store again: queues, key index, timer files.

They may go at any time, if what remembers how far they are durable goes first:

    step       a crash after it leaves
    note       a store that recovers at the next start
    lower      the same: the checkpoint names no record, so that recovery reads the whole log
    remove     queues and index partly gone: that recovery makes them again
    recover    queues, index and log agree
    timers     the store in order; amid it no timer files, which the next start makes

Queues of which the log has no record keep their files: these alone know the next offset. So do
all queues where the log is damaged: they are written over. A queue file that no store of these
sizes can have goes in any case.

Java deletes a topic without a note; one that no longer has a config nor a queue, but records, is
noted as deleted, and does not come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.disk import Disk
from kourou.store.formats import Checkpoint
from kourou.store.log.log_walk import Piece, Progress, damage_in, walk_log
from kourou.store.log.record_check import LIGHT_TOPIC_PREFIX
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
from kourou.store.queues.dispatch import is_visible, light_queues
from kourou.store.queues.topic_names import named_topics
from kourou.store.state.store_sizes import find_sizes, log_files
from kourou.store.state.store_state import StoreStateFile
from kourou.store.timer.remaking import WaitingTimers
from kourou.store.tools.mending import (
    locked,
    lower_checkpoint,
    note_change,
    recover_and_close,
    remake_closed_timers,
    remove_index_from,
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was made again.

    Attributes:
        queues: how many consume queues.
        records: of the log, whole.
        damaged: spans of the log that could not be read.
        index_files: how many there are now.
        timers: messages that wait for their time.
    """

    queues: int
    records: int
    damaged: int
    index_files: int
    timers: int


def rebuild(disk: Disk, now_ms: int, *, pid: int, progress: Progress | None = None) -> Rebuilt:
    """Make queues, index and timer files again; nobody may have the store open.

    Raises:
        StoreLockedError: somebody has it open; nothing was changed.
        StoreError: the store cannot be opened after; what is missing is made by the next start.
        OSError: a file cannot be read or written; the same.
    """
    waiting = WaitingTimers()
    with locked(disk):
        records, damaged = _forget_derived(disk, pid, progress, waiting)
    store = recover_and_close(disk, now_ms, pid=pid, progress=progress)
    queues = sum(map(len, store.queues().values()))
    timers = remake_closed_timers(disk, now_ms, waiting)
    return Rebuilt(queues, records, damaged, len(disk.list(INDEX)), timers)


def _forget_derived(
    disk: Disk, pid: int, progress: Progress | None, waiting: WaitingTimers
) -> tuple[int, int]:
    """Remove what the next start makes again; return how many records the log has, and damages."""
    files = log_files(disk, COMMITLOG)
    queues: set[tuple[str, int]] = set()
    records = damaged = end = 0
    segment_bytes = find_sizes(disk).segment_bytes
    for piece in damage_in(walk_log(disk, files, segment_bytes, progress=progress)):
        damaged += piece.kind is Piece.DAMAGE
        header = piece.header
        if header is None:
            continue
        records, end = records + 1, piece.end
        if is_visible(header.sys_flag):
            queues.add((header.topic, header.queue_id))
            start = header.properties_start
            properties = piece.buffer[start : start + header.properties_size]
            waiting.take(header, properties)
            queues.update((name, 0) for name, _ in light_queues(properties))
    _note(disk, pid, {topic for topic, _ in queues}, end)
    # Known durable is what was read, so that recovery steps over damage and does not cut there.
    lower_checkpoint(disk, Checkpoint(synced_position=end))
    for topic, queue_id in sorted(queues):
        # Of a damaged record only its entry may tell which offset it has: that is not removed.
        if is_safe_topic(topic) and queue_id >= 0 and not damaged:
            _remove_files(disk, queue_directory(topic, queue_id))
            _remove_files(disk, batch_queue_directory(topic, queue_id))
            _remove_files(disk, extension_directory(topic, queue_id))
    _remove_unfit(disk)
    remove_index_from(disk, 0)
    return records, damaged


def _note(disk: Disk, pid: int, topics: set[str], end: int) -> None:
    """Make durable that the store is to be made anew, and which topics were deleted."""
    state = StoreStateFile(disk).read()
    named = named_topics(disk)
    if state is None or named is None:
        note_change(disk, pid)
        return
    there = named.union(disk.list(CONSUMEQUEUE), disk.list(BATCH_CONSUMEQUEUE))
    gone = {one for one in topics - there if not one.startswith(LIGHT_TOPIC_PREFIX)}
    deleted = {**state.deleted_topics, **dict.fromkeys(gone, end)}
    note_change(disk, pid, deleted_topics=deleted)


def _remove_unfit(disk: Disk) -> None:
    """Remove queue files that are longer than a store's may be, or begin where none can."""
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
