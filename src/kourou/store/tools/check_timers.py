"""Checks that the timer's files contain exactly the waiting scheduled messages.

    check file   exists with a position, not ahead of the timer log or the timer topic
    timer log    names and sizes
    wheel        each slot's chain of units is complete, all of this second, and as many as counted
    units        each names a record of the timer topic and agrees with it
    records      those before the queue offset in the check file, neither delivered nor rolled, have
                 a unit

All files can be rebuilt from the commit log, as the next start does if they are missing; the
findings say so. If RocketMQ wrote the store last, only the existing data is checked for
consistency: RocketMQ writes the wheel without an order, counts wrong after a kill, and delivers
messages that are due soon without a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.disk import Disk
from kourou.errors import CorruptRecordError, KourouError, MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.record.layout import RecordHeader
from kourou.store.log.log_walk import read_log_record
from kourou.store.state.abort_file import read_last_run
from kourou.store.timer.layouts import (
    CHECK_BYTES,
    PRECISION_MS,
    WHEEL_BYTES,
    TimerSlot,
)
from kourou.store.timer.timer_log import LOG_FILE_BYTES, TIMER_LOG, TimerLog
from kourou.store.timer.timer_rebuild import WaitingTimers
from kourou.store.timer.timer_record import due_ms_of, read_timer_record
from kourou.store.timer.wheel_files import (
    TIMER_CHECK,
    TIMER_WHEEL,
    has_finer_slots,
    is_check_damaged,
    newest_wheel,
    read_check,
    read_wheel,
)
from kourou.store.tools.findings import Finding

_FINDINGS_MAX: Final = 20
_REMEDY: Final = "`kourou store rebuild` rebuilds the timer's files"


class TimersCheck:
    """Compares the timer's files with the records of the log, passed one by one to `check_record`.

    Attributes:
        waiting: messages in slots that are not done, by the slots' counts.
    """

    def __init__(self, disk: Disk, segment_bytes: int, *, is_live: bool) -> None:
        """Read the check file and the wheel; must run before the log is read, which may grow.

        Args:
            disk: holds the store.
            segment_bytes: size of a commit log segment.
            is_live: the store may be in use.
        """
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._is_live = is_live
        self._findings: list[Finding] = []
        self._left_out = 0
        self._records = WaitingTimers()
        self._units: dict[int, int] = {}  # commit log position -> timer log position
        self._seen: set[int] = set()
        self.waiting = 0
        self._check = read_check(disk)
        self._has_check = disk.exists(TIMER_CHECK)
        try:
            self._log = TimerLog(disk, LOG_FILE_BYTES, keeps_files_after_gap=True)
            self._read_wheel()
        except (KourouError, OSError) as error:
            self._report(TIMER_LOG, 0, f"cannot be read: {error}; {_REMEDY}")

    # Wheel and timer log -------------------------------------------------------------------------

    def _read_wheel(self) -> None:
        check, segments = self._check, self._log.segments
        if self._has_check and not self._is_live and self._disk.size(TIMER_CHECK) != CHECK_BYTES:
            size = self._disk.size(TIMER_CHECK)
            self._report(TIMER_CHECK, size, f"{size} bytes long, must be {CHECK_BYTES}")
        is_ours = not self._is_live and read_last_run(self._disk).was_kourou
        if is_ours and is_check_damaged(self._disk):
            text = "its checksum is wrong"
            self._report(TIMER_CHECK, 80, f"{text}; the next start, or {_REMEDY}")
            return
        if check.log_position > segments.end:
            text = f"{TIMER_LOG} ends at byte {segments.end}, before {check.log_position}"
            self._report(TIMER_CHECK, 8, f"{text}; the next start, or {_REMEDY}")
            return
        name, _ = newest_wheel(self._disk, check.log_position)
        if not self._disk.exists(name):
            if check.log_position > segments.first:
                self._report(
                    name, 0, "the file is missing: the next start rebuilds it from the timer log"
                )
            return
        size = self._disk.size(name)
        if size != WHEEL_BYTES:
            text = f"{size} bytes long, must be {WHEEL_BYTES}"
            self._report(name, size, f"{text}: the next start rebuilds it from the timer log")
            return
        if check.scan_from is None and has_finer_slots(self._disk):
            text = "its slots are shorter than a second (timerPrecisionMs)"
            self._report(name, 0, f"{text}; the next start of Kourou, or {_REMEDY}")
            return
        wheel = read_wheel(self._disk, name, check.read_at_ms // PRECISION_MS)
        self.waiting = wheel.count
        for slot in wheel.slots():
            self._check_slot(name, wheel.file_offset_of(slot.second), slot)

    def _check_slot(self, name: str, at: int, slot: TimerSlot) -> None:
        """Check the chain of a slot."""
        is_ours = self._check.scan_from is not None
        messages, first = 0, -1
        try:
            for position, unit in self._log.chain(slot.last):
                messages += unit.weight
                first = position
                self._units[unit.physical_offset] = position
                if unit.second != slot.second:
                    text = f"its unit at byte {position} of {TIMER_LOG} is of second {unit.second}"
                    self._report(name, at, f"second {slot.second}: {text}; {_REMEDY}")
                    return
        except (CorruptRecordError, OSError) as error:
            self._report(name, at, f"second {slot.second}: its chain is broken: {error}; {_REMEDY}")
            return
        if is_ours and (first, messages) != (slot.first, slot.messages):
            self._report(
                name,
                at,
                f"second {slot.second}: the slot says first unit {slot.first}, {slot.messages} "
                f"messages; its chain has first unit {first}, {messages} messages; {_REMEDY}",
            )

    # Records of the log --------------------------------------------------------------------------

    def check_record(self, header: RecordHeader, properties: bytes) -> None:
        """Check the unit of the next record of the log."""
        self._records.add_record(header, properties)
        if header.topic != TIMER_TOPIC:
            return
        position = self._units.get(header.physical_offset)
        if position is not None:
            self._seen.add(header.physical_offset)
            self._check_unit(position, header, decode_properties(properties))

    def _check_unit(
        self, position: int, header: RecordHeader, properties: Mapping[str, str]
    ) -> None:
        """Compare a unit with its record."""
        unit = self._log.unit(position)
        if unit is None:
            return  # its file was removed meanwhile
        wrong = []
        if unit.size != header.total_size:
            wrong.append(f"has {unit.size} bytes, not {header.total_size}")
        if not unit.is_roll:  # otherwise due_at_ms is the time of the roll
            due_at_ms = due_ms_of(properties)
            if unit.due_at_ms not in (0, due_at_ms):
                wrong.append(f"is due at {unit.due_at_ms}, not {due_at_ms}")
            if unit.is_delete != (names.TIMER_DEL_UNIQKEY in properties):
                wrong.append("is a recall" if unit.is_delete else "is not a recall")
        if wrong:
            name, at = self._log.segments.name(position), position % self._log.segments.file_bytes
            text = f"by the unit, its message {', and '.join(wrong)}"
            self._report(name, at, f"{text}; {_REMEDY}")

    def finish(self, log_first: int) -> list[Finding]:
        """Return the findings, after the last record of a log that begins at `log_first`."""
        topic_end = self._records.queue_offset
        if not self._check.read_at_ms:
            has_files = self._disk.list(TIMER_LOG) or self._disk.exists(TIMER_WHEEL)
            if topic_end and has_files and not self._is_live:
                text = f"the file is missing or empty, but {TIMER_TOPIC} has messages"
                self._report(TIMER_CHECK, 0, f"{text}: the next start, or {_REMEDY}")
            return self._findings
        if 0 < topic_end < self._check.queue_offset and not self._is_live:
            text = f"queue offset {self._check.queue_offset} is after the end of {TIMER_TOPIC}"
            self._report(TIMER_CHECK, 16, f"{text}, {topic_end}; {_REMEDY}")
        self._check_units(log_first)
        if self._check.scan_from is not None:
            self._check_records()
        if self._left_out:
            self._findings.append(
                Finding(self._findings[-1].file, 0, f"and {self._left_out} more problems of timers")
            )
        return self._findings

    def _check_units(self, log_first: int) -> None:
        """Report units without a record."""
        for offset in sorted(self._units.keys() - self._seen):
            if self._is_live and offset >= self._records.log_end:
                continue  # after the checked part of the log
            position = self._units[offset]
            name, at = self._log.segments.name(position), position % self._log.segments.file_bytes
            if offset < log_first:
                text = f"{offset}, which has expired: its message is lost"
            else:
                text = f"{offset}, where there is no record of {TIMER_TOPIC}; {_REMEDY}"
            self._report(name, at, f"the unit names commit log position {text}")

    def _check_records(self) -> None:
        """Report waiting messages without a unit."""
        for position in (*self._records.positions(), *self._records.recall_positions()):
            if position in self._units:
                continue
            try:
                record = read_log_record(self._disk, self._segment_bytes, position)
                timer = read_timer_record(record or b"")
            except (OSError, MalformedMessageError):
                continue  # reported with the log, or undeliverable
            offset = timer.header.queue_offset
            if offset >= self._check.queue_offset or timer.out_at_ms < self._check.read_at_ms:
                continue  # not in the timer log yet; or its slot is done and it was recalled
            due = f"due at {timer.due_at_ms}, for topic {timer.topic}"
            name, _ = newest_wheel(self._disk, 0)
            self._report(
                name, 0, f"offset {offset} of {TIMER_TOPIC}, {due}, is in no slot; {_REMEDY}"
            )

    def _report(self, file: str, offset: int, problem: str) -> None:
        if len(self._findings) >= _FINDINGS_MAX:
            self._left_out += 1
        else:
            self._findings.append(Finding(file, offset, problem))
