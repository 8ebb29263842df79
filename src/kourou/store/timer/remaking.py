"""Making the timer's files anew: all that waits is known from the commit log alone.

A message of the timer topic waits until the log has another record of it behind: the one that is
delivered, or the one that is rolled, which then waits in its place. What takes a message back has
no effect that is stored; it goes into the wheel beside the one that it takes back.

    step      a crash after it leaves
    forget    no check file, then no wheel and no timer log: the next start makes them anew
    add       the same
    flush     the files, whole: the check file is the last
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final

from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.message_layout import RecordHeader
from kourou.store.log.log_walk import Progress, walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.store_sizes import log_files
from kourou.store.timer.delivered import taken_out_for
from kourou.store.timer.layouts import PRECISION_MS
from kourou.store.timer.placing import choose_slot
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_log import TIMER_LOG
from kourou.store.timer.timer_record import RecallKey, TimerRecord, read_timer_record
from kourou.store.timer.wheel_files import TIMER_CHECK, is_wheel_file

log = logging.getLogger(__name__)

_DEQUEUED: Final = f"{names.TIMER_DEQUEUE_MS}\x01".encode()
_KEY_BYTES: Final = 16
_WRITTEN_TOGETHER: Final = 4096

ReadRecord = Callable[[int], bytes | None]
"""Returns the record at a byte of the commit log; None if there is none."""


class WaitingTimers:
    """Which messages wait, told record by record in the order of the log. Pure.

    A message that waits takes some 200 bytes; one that was delivered, nothing.

    Attributes:
        queue_offset: behind the last message of the timer topic that was told.
        log_end: the byte of the log behind the last record that was told.
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[int]] = {}
        self._deletes: dict[bytes, list[int]] = {}  # the same, of those that take others back
        self.queue_offset = 0
        self.log_end = 0

    def take(self, header: RecordHeader, properties_text: bytes) -> None:
        """Take the next record of the log."""
        self.log_end = header.physical_offset + header.total_size
        is_timer = header.topic == TIMER_TOPIC
        if is_timer:
            self.queue_offset = max(self.queue_offset, header.queue_offset + 1)
        is_dequeued = _DEQUEUED in properties_text
        if not (is_timer or is_dequeued):
            return
        said = decode_properties(properties_text)
        topic = said.get(names.REAL_TOPIC, "") if is_timer else taken_out_for(header, said)
        parts = (
            topic,
            said.get(names.UNIQ_KEY, ""),
            said.get(names.TIMER_OUT_MS, ""),
            said.get(names.TIMER_DEL_UNIQKEY, ""),
            str(header.born_at_ms),
            str(header.body_size),
        )
        key = blake2b("\x02".join(parts).encode(), digest_size=_KEY_BYTES).digest()
        table = self._deletes if names.TIMER_DEL_UNIQKEY in said else self._waiting
        if is_dequeued and (places := table.get(key)) is not None:
            places.pop(0)
            if not places:
                del table[key]
        if is_timer:
            table.setdefault(key, []).append(header.physical_offset)

    def places(self) -> list[int]:
        """Return the bytes of the log where records begin that wait to be delivered, ascending."""
        return _flat(self._waiting)

    def delete_places(self) -> list[int]:
        """Return the same of those that take others back; that they did is written nowhere."""
        return _flat(self._deletes)


def _flat(table: dict[bytes, list[int]]) -> list[int]:
    return sorted(place for places in table.values() for place in places)


def find_waiting(
    disk: Disk, segment_bytes: int, *, progress: Progress | None = None
) -> WaitingTimers:
    """Read a whole commit log; on any thread.

    Raises:
        OSError: it cannot be read.
    """
    waiting = WaitingTimers()
    for piece in walk_log(disk, log_files(disk, COMMITLOG), segment_bytes, progress=progress):
        header = piece.header
        if header is not None:
            begin = header.properties_start
            waiting.take(header, piece.buffer[begin : begin + header.properties_size])
    return waiting


def _kept(
    waiting: WaitingTimers, read_record: ReadRecord, read_at_ms: int
) -> Iterator[TimerRecord]:
    """Return what is to be put into the wheel.

    That is nothing that was taken back, once its time is past; nor what takes back what does not
    wait.
    """
    deletes = [one._replace(record=b"") for one in _records(waiting.delete_places(), read_record)]
    taken_back = {(one.key, one.out_at_ms) for one in deletes}
    targets: set[RecallKey] = set()
    for timer in _records(waiting.places(), read_record):
        if timer.out_at_ms < read_at_ms and (timer.key, timer.out_at_ms) in taken_back:
            continue
        targets.add(timer.key)
        yield timer
    yield from (one for one in deletes if one.key in targets)


def _records(places: Iterable[int], read_record: ReadRecord) -> Iterator[TimerRecord]:
    for place in places:
        try:
            yield read_timer_record(read_record(place) or b"")
        except MalformedMessageError as error:
            log.error("timer_record.passed_over reason=%s", error)  # noqa: TRY400 - it says all


def forget_timers(disk: Disk) -> None:
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


def remake_timers(
    disk: Disk,
    waiting: WaitingTimers,
    read_record: ReadRecord,
    now_ms: int,
    *,
    log_file_bytes: int,
    window_ms: int,
) -> TimerFiles:
    """Make the timer's files of what waits; what was due meanwhile comes at once.

    Args:
        disk: the store's, whose old files were forgotten.
        waiting: of the whole commit log, which is durable.
        read_record: reads from it.
        now_ms: the time.
        log_file_bytes: of a file of the timer log.
        window_ms: who waits for so long, or longer, is rolled.

    Raises:
        OSError: a file cannot be read or written; the next start makes them anew.
    """
    files = TimerFiles(disk, log_file_bytes)
    files.read_at_ms = max(PRECISION_MS, now_ms // PRECISION_MS * PRECISION_MS)  # 0: no file
    files.queue_offset = waiting.queue_offset
    for count, timer in enumerate(_kept(waiting, read_record, files.read_at_ms), 1):
        choice = choose_slot(timer.out_at_ms, now_ms, files.read_at_ms, window_ms)
        files.add(choice, timer.unit(choice, now_ms))
        if count % _WRITTEN_TOGETHER == 0:
            files.log.write()
    files.log.write()
    files.is_changed = True
    plan = files.plan_flush(now_ms, waiting.log_end, waiting.log_end)
    assert plan is not None, "it has changed"
    files.run_flush(plan)
    files.flushed(plan)
    files.scan_from = waiting.log_end
    log.warning(
        "timer_files.remade waiting=%d queue_offset=%d", files.wheel.count, files.queue_offset
    )
    return files
