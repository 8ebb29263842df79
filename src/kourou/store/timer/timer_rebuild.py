"""Rebuilds the timer's files from the commit log, which determines all waiting messages.

A message of the timer topic waits until a later record of it is in the log: the delivered message,
or the rolled one, which then waits instead. A recall leaves no record of its effect; it is put into
the wheel beside the message that it recalls.

    step      left by a crash after this step
    remove    no check file, and perhaps no wheel and timer log: the next start rebuilds them
    add       the same
    flush     the complete files: the check file is written last
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from kourou.disk import Disk
from kourou.errors import MalformedMessageError, StoreConfigError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.record.layout import RecordHeader
from kourou.protocol.timer_progress import ReplicaProgress
from kourou.store.log.log_walk import Progress, walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import log_files
from kourou.store.timer.delivered import target_topic
from kourou.store.timer.layouts import PRECISION_MS
from kourou.store.timer.slot_choice import choose_slot
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_log import LOG_FILE_BYTES, TIMER_LOG
from kourou.store.timer.timer_record import RecallKey, TimerRecord, read_timer_record
from kourou.store.timer.wheel_files import TIMER_CHECK, is_wheel_file, read_check

log = logging.getLogger(__name__)

_DEQUEUED: Final = f"{names.TIMER_DEQUEUE_MS}\x01".encode()
_KEY_BYTES: Final = 16
_WRITTEN_TOGETHER: Final = 4096

ReadRecord = Callable[[int], bytes | None]
"""Returns the record at a commit log position; None if there is none."""


class WaitingTimers:
    """Collects the waiting messages from all records, in log order. Pure.

    A waiting message takes about 200 bytes; a delivered one takes none.

    Attributes:
        queue_offset: after the last message of the timer topic.
        log_end: the log position after the last record.
    """

    def __init__(self) -> None:
        self._waiting = KeyedPositions()
        self._deletes = KeyedPositions()  # the same for recalls
        self.queue_offset = 0
        self.log_end = 0

    def add_record(self, header: RecordHeader, properties_text: bytes) -> None:
        """Process the next record of the log."""
        self.log_end = header.physical_offset + header.total_size
        is_timer = header.topic == TIMER_TOPIC
        if is_timer:
            self.queue_offset = max(self.queue_offset, header.queue_offset + 1)
        is_dequeued = _DEQUEUED in properties_text
        if not (is_timer or is_dequeued):
            return
        properties = decode_properties(properties_text)
        topic = (
            properties.get(names.REAL_TOPIC, "") if is_timer else target_topic(header, properties)
        )
        key_fields = (
            topic,
            properties.get(names.UNIQ_KEY, ""),
            properties.get(names.TIMER_OUT_MS, ""),
            properties.get(names.TIMER_DEL_UNIQKEY, ""),
            str(header.born_at_ms),
            str(header.body_size),
        )
        key = blake2b("\x02".join(key_fields).encode(), digest_size=_KEY_BYTES).digest()
        table = self._deletes if names.TIMER_DEL_UNIQKEY in properties else self._waiting
        if is_dequeued:
            table.remove_first(key)
        if is_timer:
            table.add(key, header.physical_offset)

    def positions(self) -> list[int]:
        """Return the log positions of messages that wait to be delivered, ascending."""
        return self._waiting.sorted()

    def recall_positions(self) -> list[int]:
        """Return the log positions of all recalls; the log does not show which took effect."""
        return self._deletes.sorted()


class KeyedPositions:
    """Log positions by key, mostly one for each, in the order of the log.

    A list for each would be a million objects of which the garbage collector looks at each, again
    and again, while nothing else runs.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._others: dict[bytes, list[int]] = {}

    def add(self, key: bytes, position: int) -> None:
        """Add a position, greater than those of the key."""
        if key in self._first:
            self._others.setdefault(key, []).append(position)
        else:
            self._first[key] = position

    def remove_first(self, key: bytes) -> None:
        """Remove the first position of a key, if it has any."""
        others = self._others.pop(key, [])
        if others:
            self._first[key] = others.pop(0)
            if others:
                self._others[key] = others
        else:
            self._first.pop(key, None)

    def sorted(self) -> list[int]:
        """Return all positions, ascending."""
        found = list(self._first.values())
        for others in self._others.values():
            found += others
        found.sort()
        return found


def find_waiting(
    disk: Disk,
    segment_bytes: int,
    *,
    end: int | None = None,
    progress: Progress | None = None,
) -> WaitingTimers:
    """Find the waiting messages of a whole commit log; runs on any thread.

    Args:
        disk: holds the store.
        segment_bytes: size of the log's segments.
        end: the log position up to which records are read; None: all.
        progress: called at intervals.

    Raises:
        OSError: the log cannot be read.
    """
    waiting = WaitingTimers()
    for piece in walk_log(disk, log_files(disk, COMMITLOG), segment_bytes, progress=progress):
        header = piece.header
        if end is not None and piece.position >= end:
            break
        if header is not None:
            waiting.add_record(header, header.properties(piece.buffer))
    return waiting


def _entries_to_add(
    waiting: WaitingTimers, read_record: ReadRecord, files: TimerFiles
) -> Iterator[TimerRecord]:
    """Yield the messages and recalls that belong into the wheel.

    Leaves out recalled messages whose time is past, and recalls of messages that do not wait.
    """
    read_at_ms, end = files.read_at_ms, files.queue_offset
    deletes = [
        one._replace(record=b"") for one in _records(waiting.recall_positions(), read_record)
    ]
    recalled = {(one.key, one.out_at_ms) for one in deletes}
    targets: set[RecallKey] = set()
    for timer in _records(waiting.positions(), read_record):
        if timer.out_at_ms < read_at_ms and (timer.key, timer.out_at_ms) in recalled:
            continue
        if timer.header.queue_offset < end:
            targets.add(timer.key)
            yield timer
    yield from (one for one in deletes if one.key in targets and one.header.queue_offset < end)


def _records(positions: Iterable[int], read_record: ReadRecord) -> Iterator[TimerRecord]:
    for position in positions:
        try:
            yield read_timer_record(read_record(position) or b"")
        except MalformedMessageError as error:
            log.error("timer_record.passed_over reason=%s", error)  # noqa: TRY400 - the text has all details


def remove_timer_files(disk: Disk) -> None:
    """Remove all files of the timer, durably, the check file first."""
    if disk.exists(TIMER_CHECK):
        disk.unlink(TIMER_CHECK)
        disk.sync_directory("config")
    wheels = [name for name in disk.list("") if is_wheel_file(name)]
    logs = [f"{TIMER_LOG}/{name}" for name in disk.list(TIMER_LOG)]
    for name in (*wheels, *logs):
        disk.unlink(name)
    if logs:
        disk.sync_directory(TIMER_LOG)
    if wheels:
        disk.sync_directory("")


def cut_timer_files(disk: Disk, position: int) -> None:
    """Remove the timer's files, unless they are valid for a log that ends at a position.

    Files that stay are recovered as after a kill: the store may be closed cleanly after this.

    Raises:
        OSError: a file cannot be read or written.
    """
    if read_check(disk).covered_at is not None:
        with suppress(StoreConfigError):
            files = TimerFiles(disk, LOG_FILE_BYTES)
            if files.rebuild_reason(0, position, was_kourou=True) is None:
                files.recover(0, lambda _: None, was_clean=False)
                return
    remove_timer_files(disk)


def rebuild_timers(
    disk: Disk,
    waiting: WaitingTimers,
    read_record: ReadRecord,
    now_ms: int,
    *,
    log_file_bytes: int,
    window_ms: int,
    progress: ReplicaProgress | None = None,
    check: Callable[[], None] = lambda: None,
) -> TimerFiles:
    """Build the timer's files from the waiting messages; overdue ones are delivered at once.

    Those of a slave are built with the progress of its master.

    Args:
        disk: holds the store; `remove_timer_files` has removed its old files.
        waiting: from the whole commit log, which is durable; or up to `progress.covered_at`.
        read_record: reads from the commit log.
        now_ms: the current time.
        log_file_bytes: size of a file of the timer log.
        window_ms: a message that waits this long, or longer, is rolled.
        progress: of the master.
        check: called at intervals; what it raises ends this.

    Raises:
        OSError: a file cannot be read or written; the next start rebuilds them.
    """
    files = TimerFiles(disk, log_file_bytes)
    files.note_window(window_ms)
    if progress is None:
        at_ms, scan_from, end = now_ms, waiting.log_end, waiting.queue_offset
    else:
        at_ms, scan_from, end = progress.read_at_ms, progress.scan_from, progress.queue_offset
    files.read_at_ms = max(PRECISION_MS, at_ms // PRECISION_MS * PRECISION_MS)  # not 0: no file
    files.queue_offset = end
    if progress is None:  # overdue messages are in this slot
        files.note_inexact(files.read_at_ms // PRECISION_MS)
    for count, timer in enumerate(_entries_to_add(waiting, read_record, files), 1):
        stored_at_ms = timer.header.store_at_ms
        if progress is None:  # else the master's clock counts
            stored_at_ms = min(stored_at_ms, now_ms)
        choice = choose_slot(timer.out_at_ms, stored_at_ms, files.read_at_ms, window_ms)
        files.add(choice, timer.unit(choice, now_ms))
        if count % _WRITTEN_TOGETHER == 0:
            files.log.write()
            check()
    files.log.write()
    files.is_changed = True
    plan = files.plan_flush(now_ms, scan_from, waiting.log_end)
    assert plan is not None, "it has changed"
    files.run_flush(plan)
    files.flush_succeeded(plan)
    files.scan_from = plan.check.scan_from
    log.warning(
        "timer_files.remade waiting=%d queue_offset=%d", files.wheel.count, files.queue_offset
    )
    return files
