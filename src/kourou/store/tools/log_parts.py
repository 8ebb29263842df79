"""Plans parallel reads of a commit log: parts of its files that tasks read independently.

Nothing is locked or changed. A plan is made once; each task then reads its parts with `walk_part`:

    store                      read up to
    closed, or its broker      the end of its last file; an incomplete last record is damage
    was killed
    in use by a broker         the durable end that the checkpoint declares, which stays as it is

A part begins at the start of a file or at a record, so that the parts together yield each piece of
the log once. Records inside of a file are found by entries of consume queues: a search for the next
magic could mistake a body that contains a record for one.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import KourouError, MalformedMessageError, StoreLockedError
from kourou.protocol import fastjson
from kourou.protocol.record.layout import RECORD_START
from kourou.protocol.record.read import read_checked
from kourou.store.formats import BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES, Checkpoint
from kourou.store.log.log_walk import LogPiece, PieceKind, read_log_record, walk_log
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    CONSUMEQUEUE,
    LOCK,
    TOPICS,
    queue_directory,
)
from kourou.store.state.abort_file import read_last_run
from kourou.store.state.checkpoint import load_checkpoint
from kourou.store.state.config_file import BARE_KEYS_BYTES_MAX, ConfigFile
from kourou.store.state.file_sizes import LogFile, find_sizes, log_files, queue_ids
from kourou.store.state.store_state import StoreStateFile

_FILES_SPLIT_MAX: Final = 64
"""A log of more files than this is not split further: they are parts enough."""
_QUEUES_SEARCHED_MAX: Final = 16
_CLOCK_STEP_MS: Final = 600_000
"""Largest step back of the broker's clock that the choice of files by time allows for."""


class LogPart(NamedTuple):
    """A part of one file of the log.

    Attributes:
        file: the file, as it was when the read was planned.
        begin: position of the first piece.
        end: pieces that begin at or after this position belong to the next part.
        gap_bytes: bytes that are missing before the file, reported with this part.
        is_followed: a later file contains records, so an unused rest of this file is damage.
    """

    file: LogFile
    begin: int
    end: int
    gap_bytes: int = 0
    is_followed: bool = False


class DeletedTopics(NamedTuple):
    """The topics whose records are in the log although the topic was deleted.

    Attributes:
        below: topic to the log position below which its records are those of a deleted topic.
        existing: existing topics; None: every topic counts as existing. Java records no deletions:
            a topic with neither config nor queues counts as deleted.
    """

    below: Mapping[str, int]
    existing: frozenset[str] | None

    def end_of(self, topic: str) -> int | None:
        """Return the position below which the topic's records are deleted; None: all are."""
        if self.existing is not None and topic not in self.existing:
            return None
        return self.below.get(topic, 0)


class LogPlan(NamedTuple):
    """A read of a log.

    Attributes:
        segment_bytes: the expected size of each file.
        part_bytes: files were split into parts of about this size.
        parts: in log order.
        durable_end: the store is in use and durable up to this position; None: it is not in use.
        deleted: the deleted topics.
    """

    segment_bytes: int
    part_bytes: int
    parts: tuple[LogPart, ...]
    durable_end: int | None
    deleted: DeletedTopics


def plan_log(
    disk: Disk,
    *,
    part_bytes: int,
    parts_min: int = 1,
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> LogPlan:
    """Return the plan of a read of the whole log.

    Args:
        disk: holds the store.
        part_bytes: files are split into parts of about this size.
        parts_min: number of parts for which smaller ones are made if necessary and possible.
        begin_ms: files whose records were all stored before this time are left out.
        end_ms: files whose records were all stored after this time are left out.

    Raises:
        StoreLockedError: a Java broker uses the store and wrote no durable end: it is older than
            5.5, or runs for the first time and not yet for a minute.
        OSError: a directory or file cannot be read.
    """
    segment_bytes = find_sizes(disk).segment_bytes
    # Before the files are listed: the part that the checkpoint declares durable stays so.
    known_end = durable_end(disk, load_checkpoint(disk), segment_bytes)
    end = known_end if disk.is_locked(LOCK) else None
    if end == 0 and not read_last_run(disk).was_kourou:
        raise StoreLockedError(
            f"{disk.root} is in use, and its checkpoint does not tell which part is durable: stop "
            "that broker, or read a copy of the store; brokers of RocketMQ 5.5 or later write it a "
            "minute after their first start"
        )
    files = [file for file in log_files(disk, COMMITLOG) if end is None or file.start < end]
    if parts_min > 1 and files:
        used_bytes = known_end - files[0].start
        total = used_bytes if used_bytes > 0 else sum(file.size for file in files)
        part_bytes = max(min(part_bytes, total // parts_min), 1)
    times = [_first_time(disk, file, segment_bytes) for file in files]
    used = [number for number, file in enumerate(files) if _is_used(disk, file)]
    last_used = used[-1] if used else -1
    splits = _Splits(disk, segment_bytes) if len(files) <= _FILES_SPLIT_MAX else None
    parts: list[LogPart] = []
    expected: int | None = None
    for number, file in enumerate(files):
        gap = file.start - expected if expected is not None else 0
        expected = file.start + segment_bytes
        if not _may_match(times[number:], begin_ms, end_ms):
            continue
        stop = expected if end is None else min(expected, end)
        cuts = splits.cuts(file.start, stop, part_bytes) if splits is not None else []
        for begin, until in zip([file.start, *cuts], [*cuts, stop], strict=True):
            lacking = max(gap, 0) if begin == file.start else 0
            parts.append(LogPart(file, begin, until, lacking, number < last_used))
    return LogPlan(segment_bytes, part_bytes, tuple(parts), end, deleted_topics(disk))


def pack_parts(plan: LogPlan, tasks_max: int) -> list[LogPlan]:
    """Return the plan as at most `tasks_max` plans of similar sizes, one for each task.

    Small parts are packed together up to about the plan's size of a part.
    """
    # Not the whole size: the last file may be nearly unused.
    weights = [min(part.end - part.begin, plan.part_bytes) for part in plan.parts]
    total = sum(weights)
    count = min(tasks_max, -(-total // plan.part_bytes))
    tasks: list[list[LogPart]] = [[] for _ in range(count)]
    packed = 0
    for part, weight in zip(plan.parts, weights, strict=True):
        tasks[(packed + weight // 2) * count // total].append(part)
        packed += weight
    return [plan._replace(parts=tuple(task)) for task in tasks if task]


def durable_end(disk: Disk, checkpoint: Checkpoint, segment_bytes: int) -> int:
    """Return the position up to which the log is durable by the checkpoint; 0 if it is unknown."""
    at = end = checkpoint.queues_offset
    try:
        record = read_log_record(disk, segment_bytes, at) if at > 0 else None
    except OSError:
        record = None
    if record is not None:
        end = at + len(record)
    return max(end, checkpoint.synced_position)


def deleted_topics(disk: Disk) -> DeletedTopics:
    """Return the deleted topics; none if the config files cannot be read."""
    try:
        state = StoreStateFile(disk).read()
    except (KourouError, OSError):
        return DeletedTopics({}, None)
    try:
        table = ConfigFile(disk, TOPICS, _parse).load()
        found = None if table is None else _parse(table)
    except (KourouError, OSError):
        found = None
    config = found.get("topicConfigTable") if isinstance(found, dict) else None
    below = {} if state is None else state.deleted_topics
    if not isinstance(config, dict):
        return DeletedTopics(below, None)
    queues = (frozenset(disk.list(root)) for root in (CONSUMEQUEUE, BATCH_CONSUMEQUEUE))
    return DeletedTopics(below, frozenset(map(str, config)).union(*queues))


def walk_part(
    disk: Disk, plan: LogPlan, part: LogPart, start: int | None = None
) -> Iterator[LogPiece]:
    """Yield the records, blanks and damage of a part.

    Args:
        disk: holds the store.
        plan: the plan that has the part.
        part: the part.
        start: position of one of its pieces, at which the walk begins; None: the part's begin.
    """
    if start is None:
        start = part.begin
        for missing in missing_pieces(disk, part):
            yield missing
            start = missing.end
    for piece in walk_log(disk, [part.file], plan.segment_bytes, start=start):
        if piece.position >= part.end:
            return
        if piece.kind is PieceKind.UNUSED:
            if part.is_followed:
                yield piece._replace(kind=PieceKind.DAMAGE, problem="zeros, and records follow")
        elif piece.kind is PieceKind.DAMAGE and plan.durable_end is not None:
            # Beyond the durable end, records may be half written.
            yield piece._replace(size=min(piece.end, plan.durable_end) - piece.position)
        else:
            yield piece


def missing_pieces(disk: Disk, part: LogPart) -> list[LogPiece]:
    """Return the bytes before or of the part that no file has, as damage."""
    pieces = []
    if part.gap_bytes:
        at = part.file.start - part.gap_bytes
        pieces.append(LogPiece(PieceKind.DAMAGE, at, part.gap_bytes, "the file is missing"))
    if not disk.exists(part.file.name):
        problem = "the file was removed after the read was planned"
        pieces.append(LogPiece(PieceKind.DAMAGE, part.begin, part.end - part.begin, problem))
    return pieces


def _parse(text: bytes) -> object:
    return fastjson.loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)


def _first_time(disk: Disk, file: LogFile, segment_bytes: int) -> int | None:
    """Return the store time of the file's first record; None if that is missing or damaged."""
    try:
        record = read_log_record(disk, segment_bytes, file.start)
        header = None if record is None else read_checked(record, 0)
    except (OSError, MalformedMessageError):
        return None
    return header.store_at_ms if header and header.physical_offset == file.start else None


def _is_used(disk: Disk, file: LogFile) -> bool:
    """Tell whether the file begins with other bytes than zeros."""
    try:
        return bool(disk.read(file.name, 0, RECORD_START.size).strip(b"\0"))
    except OSError:
        return True


def _may_match(times: Sequence[int | None], begin_ms: int, end_ms: int | None) -> bool:
    """Tell whether a file may contain records of a span of time.

    Args:
        times: store times of the first records of the file and of all later files.
        begin_ms: the first time of the span.
        end_ms: the last time of the span; None: no limit.
    """
    first = times[0]
    if end_ms is not None and first is not None and first - _CLOCK_STEP_MS > end_ms:
        return False
    following = next((time for time in times[1:] if time is not None), None)
    return following is None or following + _CLOCK_STEP_MS >= begin_ms


class _Splits:
    """Finds records at which a file can be split, by entries of the largest consume queues."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._queues: list[list[LogFile]] | None = None

    def cuts(self, start: int, end: int, part_bytes: int) -> list[int]:
        """Return positions of records between `start` and `end`, about `part_bytes` apart."""
        found: list[int] = []
        wanted = start + part_bytes
        while wanted < end:
            position = self._record_at_or_after(wanted)
            if position is None or position >= end:
                break
            found.append(position)
            wanted = position + part_bytes
        return found

    def _record_at_or_after(self, position: int) -> int | None:
        """Return the lowest position of a valid record that a searched queue has there."""
        if self._queues is None:
            self._queues = self._largest_queues()
        found = [_next_entry(self._disk, files, position) for files in self._queues]
        later = sorted(one for one in found if one is not None and one >= position)
        return next((one for one in later if self._is_record(one)), None)

    def _largest_queues(self) -> list[list[LogFile]]:
        queues = (
            log_files(self._disk, queue_directory(topic, queue_id))
            for topic, queue_id in queue_ids(self._disk)
        )
        filled = [files for files in queues if files and _offset(self._disk, files, 0) is not None]
        return sorted(filled, key=len, reverse=True)[:_QUEUES_SEARCHED_MAX]

    def _is_record(self, position: int) -> bool:
        try:
            record = read_log_record(self._disk, self._segment_bytes, position)
            return record is not None and read_checked(record, 0).physical_offset == position
        except (MalformedMessageError, OSError):
            return False


def _next_entry(disk: Disk, files: Sequence[LogFile], position: int) -> int | None:
    """Return the first physical offset at or after `position` in a queue; None if there is none."""
    count = sum(file.size for file in files) // ENTRY_BYTES

    def key(number: int) -> int:
        offset = _offset(disk, files, number)
        return sys.maxsize if offset is None else offset

    number = bisect_left(range(count), position, key=key)
    return _offset(disk, files, number) if number < count else None


def _offset(disk: Disk, files: Sequence[LogFile], number: int) -> int | None:
    """Return the physical offset of a queue's entry; -1 if it is blank, None if it is unused."""
    at = files[0].start + number * ENTRY_BYTES
    file = files[min((at - files[0].start) // max(files[0].size, 1), len(files) - 1)]
    try:
        data = disk.read(file.name, at - file.start, ENTRY_BYTES)
    except (OSError, ValueError):
        return None
    if len(data) < ENTRY_BYTES:
        return None
    offset, size, _ = ENTRY.unpack(data)
    if size == BLANK_ENTRY_SIZE:
        return -1
    return int(offset) if size > 0 else None
