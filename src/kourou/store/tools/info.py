"""Summary of a store, read from its files without opening or changing it.

It is cheap for a store of any size: it reads the log's first record and last files, both ends of
each queue, and the entries of batch queues. Nothing is verified: a damaged file makes a number
smaller or a field None, but raises no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.disk import Disk
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.record.layout import RecordHeader
from kourou.store.formats import BATCH_ENTRY, BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.log.log_walk import LogPiece, PieceKind, walk_log, with_damage
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    STORE_STATE,
    is_queue_id,
    queue_directory,
)
from kourou.store.state.abort_file import LastRun, read_last_run
from kourou.store.state.file_sizes import (
    LogFile,
    StoreSizes,
    find_sizes,
    log_files,
    queue_ids,
)
from kourou.store.timer.layouts import PRECISION_MS
from kourou.store.timer.timer_log import TIMER_LOG
from kourou.store.timer.wheel import TimerWheel
from kourou.store.timer.wheel_files import TIMER_WHEEL, newest_wheel, read_check, read_wheel

_SEARCH_ENTRIES: Final = 1024
_LAST_FILES: Final = 2
"""Files at the log's end that are searched for its last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """Offsets of a queue.

    Attributes:
        min_offset: offset of the first entry whose record is in the log.
        max_offset: offset of the last entry plus one.
        kind: "queue" or "batch-queue".
        files: number of files.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    kind: str
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimersInfo:
    """Waiting scheduled messages, by the timer's files.

    Attributes:
        waiting: messages in the wheel, without recalled ones.
        first_at_ms: time of the first slot with messages; None if there is none.
        last_at_ms: time of the last slot with messages; later messages are rolled at their slots.
        behind: messages of the timer topic that are not in the wheel yet.
        read_at_ms: slots before this one are done.
        log_files: number of files of the timer log.
    """

    waiting: int
    first_at_ms: int | None
    last_at_ms: int | None
    behind: int
    read_at_ms: int
    log_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """Summary of a store.

    Attributes:
        sizes: sizes of its files.
        last_run: the last broker, and how its run ended.
        is_kourous: Kourou has opened the store at least once.
        log_first: first position of the log's first file.
        log_end: position after the last record.
        log_files: number of log files.
        first_at_ms: store time of the first record; None if there is none.
        last_at_ms: store time of the last record; None if there is none.
        queues: sorted by topic and queue id, batch queues last.
        timers: None if the store has never had scheduled messages.
    """

    sizes: StoreSizes
    last_run: LastRun
    is_kourous: bool
    log_first: int
    log_end: int
    log_files: int
    first_at_ms: int | None
    last_at_ms: int | None
    queues: list[QueueInfo]
    timers: TimersInfo | None


def store_info(disk: Disk) -> StoreInfo:
    """Return the summary of a store, which may be in use and change meanwhile.

    Raises:
        OSError: a file cannot be read.
    """
    sizes = find_sizes(disk)
    files = log_files(disk, COMMITLOG)
    first = files[0].start if files else 0
    first_record = next(_records(disk, files[:1], sizes), None)
    last, end = _end_of_log(disk, files, sizes)
    queues = [*_queues(disk, sizes, first), *_batch_queues(disk)]
    return StoreInfo(
        sizes=sizes,
        last_run=read_last_run(disk),
        is_kourous=disk.exists(STORE_STATE),
        log_first=first,
        log_end=max(end, first),
        log_files=len(files),
        first_at_ms=first_record.store_at_ms if first_record else None,
        last_at_ms=last.store_at_ms if last else None,
        queues=queues,
        timers=_timers(disk, queues),
    )


def _timers(disk: Disk, queues: Sequence[QueueInfo]) -> TimersInfo | None:
    topic_end = max((one.max_offset for one in queues if one.topic == TIMER_TOPIC), default=0)
    check = read_check(disk)
    if not topic_end and not disk.exists(TIMER_WHEEL):
        return None
    name, _ = newest_wheel(disk, check.log_position)
    wheel = TimerWheel()
    if check.read_at_ms and disk.exists(name):
        wheel = read_wheel(disk, name, check.read_at_ms // PRECISION_MS)
    # Recalls count as -1 even without a message to recall, so that a slot's count may be negative.
    slots = [slot for slot in wheel.slots() if slot.messages > 0]
    seconds = [slot.second * PRECISION_MS for slot in slots]
    return TimersInfo(
        waiting=sum(slot.messages for slot in slots),
        first_at_ms=min(seconds, default=None),
        last_at_ms=max(seconds, default=None),
        behind=max(0, topic_end - check.queue_offset),
        read_at_ms=check.read_at_ms,
        log_files=len(log_files(disk, TIMER_LOG)),
    )


def _records(disk: Disk, files: Sequence[LogFile], sizes: StoreSizes) -> Iterator[RecordHeader]:
    for piece in walk_log(disk, files, sizes.segment_bytes):
        if piece.header is not None:
            yield piece.header


def _end_of_log(
    disk: Disk, files: Sequence[LogFile], sizes: StoreSizes
) -> tuple[RecordHeader | None, int]:
    """Return the log's last record, searched in its last files, and the log's end."""
    last: LogPiece | None = None
    end = files[0].start if files else 0
    for count in range(1, min(_LAST_FILES, len(files)) + 1):
        for piece in with_damage(walk_log(disk, files[-count:], sizes.segment_bytes)):
            if piece.kind is PieceKind.RECORD:
                last = piece._replace(buffer=b"")
                end = piece.end
            elif piece.kind is PieceKind.BLANK:
                end = piece.end
        if last is not None:
            break
    return (last.header if last is not None else None), end


def _queues(disk: Disk, sizes: StoreSizes, log_first: int) -> Iterator[QueueInfo]:
    for topic, queue_id in queue_ids(disk):
        files = log_files(disk, queue_directory(topic, queue_id))
        end = _queue_end(disk, files)
        yield QueueInfo(
            topic=topic,
            queue_id=queue_id,
            min_offset=min(_queue_start(disk, files, sizes, log_first, end), end),
            max_offset=end,
            kind="queue",
            files=len(files),
        )


def _queue_end(disk: Disk, files: Sequence[LogFile]) -> int:
    """Return the offset after the last entry, by binary search in the last file that has one."""
    for file in reversed(files):
        low, high = 0, file.size // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            entry = _entry(disk, file, middle)
            if entry is not None and entry.size > 0:
                low = middle + 1
            else:
                high = middle
        if low:
            return file.start // ENTRY_BYTES + low
    return files[0].start // ENTRY_BYTES if files else 0


def _queue_start(
    disk: Disk, files: Sequence[LogFile], sizes: StoreSizes, log_first: int, end: int
) -> int:
    """Return the offset of the first entry whose record is in the log, by binary search."""
    low, high = (files[0].start // ENTRY_BYTES if files else 0), end
    by_start = {file.start: file for file in files}
    while low < high:
        middle = (low + high) // 2
        position = middle * ENTRY_BYTES
        file = by_start.get(position - position % sizes.queue_bytes)
        entry = None if file is None else _entry(disk, file, middle - file.start // ENTRY_BYTES)
        is_blank = entry is not None and entry.size == BLANK_ENTRY_SIZE
        if entry is None or is_blank or entry.physical_offset < log_first:
            low = middle + 1
        else:
            high = middle
    return low


def _entry(disk: Disk, file: LogFile, index: int) -> QueueEntry | None:
    data = disk.read(file.name, index * ENTRY_BYTES, ENTRY_BYTES)
    return QueueEntry._make(ENTRY.unpack(data)) if len(data) == ENTRY_BYTES else None


def _batch_queues(disk: Disk) -> Iterator[QueueInfo]:
    for topic in disk.list(BATCH_CONSUMEQUEUE):
        for name in disk.list(f"{BATCH_CONSUMEQUEUE}/{topic}"):
            if not is_queue_id(name):
                continue
            files = log_files(disk, f"{BATCH_CONSUMEQUEUE}/{topic}/{name}")
            offsets = [entry for file in files for entry in _batch_entries(disk, file)]
            yield QueueInfo(
                topic=topic,
                queue_id=int(name),
                min_offset=offsets[0][0] if offsets else 0,
                max_offset=offsets[-1][1] if offsets else 0,
                kind="batch-queue",
                files=len(files),
            )


def _batch_entries(disk: Disk, file: LogFile) -> Iterator[tuple[int, int]]:
    """Yield the first and the next queue offset of each used entry of the file."""
    at, step = 0, _SEARCH_ENTRIES * BATCH_ENTRY.size
    while data := disk.read(file.name, at, step):
        for fields in BATCH_ENTRY.iter_unpack(data[: len(data) - len(data) % BATCH_ENTRY.size]):
            if fields[1] > 0:
                yield fields[4], fields[4] + fields[5]
        at += step
