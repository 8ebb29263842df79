"""What a store holds, told from its files without opening or changing it: for people who ask.

Cheap whatever the size: the log's first and last records, and both ends of each queue. Nothing is
checked; a damaged file makes a number smaller or a field None, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.disk import Disk
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.message_layout import RecordHeader
from kourou.store.formats import BATCH_ENTRY, BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.log.log_walk import LogPiece, Piece, damage_in, walk_log
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    STORE_STATE,
    queue_directory,
)
from kourou.store.state.abort_file import LastRun, read_last_run
from kourou.store.state.store_sizes import (
    LogFile,
    StoreSizes,
    find_sizes,
    is_queue_id,
    log_files,
    queue_ids,
)
from kourou.store.timer.layouts import PRECISION_MS
from kourou.store.timer.timer_log import TIMER_LOG
from kourou.store.timer.wheel import TimerWheel
from kourou.store.timer.wheel_files import TIMER_WHEEL, newest_wheel, read_check, read_wheel

_SEARCH_ENTRIES: Final = 1024
_LAST_FILES: Final = 2
"""Files from the log's end in which its last record is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """Which offsets a queue has.

    Attributes:
        min_offset: of its first entry whose record the log still has.
        max_offset: one more than its last entry's.
        kind: "queue" or "batch-queue".
        files: of the queue.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    kind: str
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimersInfo:
    """What waits for its time, by what the timer's files say.

    Attributes:
        waiting: messages in the wheel, but for those that were taken back.
        first_at_ms: the second of the first slot that has messages; None without one.
        last_at_ms: the same of the last; what waits for longer is rolled on from there.
        behind: messages of the timer topic that are not in the wheel yet.
        read_at_ms: slots before this one are done.
        log_files: of the timer log.
    """

    waiting: int
    first_at_ms: int | None
    last_at_ms: int | None
    behind: int
    read_at_ms: int
    log_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """What a store holds.

    Attributes:
        sizes: of its files.
        last_run: who had it open last, and how that ended.
        is_kourous: Kourou has had it open at least once.
        log_first: the byte of the log where its first file begins.
        log_end: the byte behind its last record.
        log_files: how many there are.
        first_at_ms: when its first record was stored; None without one.
        last_at_ms: the same of its last.
        queues: sorted by topic and queue id.
        timers: None where no timer ever was.
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
    """Return what the store holds; one in use may go on meanwhile.

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
    # What takes others back counts less than nothing, also where it has nothing to take back.
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
    """Return the log's last record, of its last files, and where the log ends."""
    last: LogPiece | None = None
    end = files[0].start if files else 0
    for count in range(1, min(_LAST_FILES, len(files)) + 1):
        for piece in damage_in(walk_log(disk, files[-count:], sizes.segment_bytes)):
            if piece.kind is Piece.RECORD:
                last = piece._replace(buffer=b"")
                end = piece.end
            elif piece.kind is Piece.BLANK:
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
    """Return the offset behind the last entry, by halving the last file that has one."""
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
    """Return the offset of the first entry whose record is in the log; entries are in order."""
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
    """Return the first and the next queue offset of each entry of the file that has one."""
    at, step = 0, _SEARCH_ENTRIES * BATCH_ENTRY.size
    while data := disk.read(file.name, at, step):
        for fields in BATCH_ENTRY.iter_unpack(data[: len(data) - len(data) % BATCH_ENTRY.size]):
            if fields[1] > 0:
                yield fields[4], fields[4] + fields[5]
        at += step
