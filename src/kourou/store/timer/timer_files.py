"""The timer's files: opens, recovers and flushes the timer log, the wheel and the check file.

A flush has these steps, so that a crash at any point can be recovered:

    step    action                                    if a crash follows this step
    write   write units to the timer log              their messages are read from the topic again
    sync    sync the timer log                        the same
    wheel   write and sync the changed pages          the same, and slots may name units after the
                                                      position in the check file: these are unlinked
    check   write and sync the positions of log,      -
            wheel and topic

A slave writes its files likewise, with the progress of its master (`replica_progress.py`).

A start truncates the timer log at the position of the check file, and appends the later units again
from the timer topic. After Java it keeps the later units, as Java does: Java never writes its wheel
in parts. The check file is written only when the commit log is synced up to the positions in it.
Files that lack waiting messages (`rebuild_reason`, `lacks_units`) are rebuilt from the commit log
by `timer_rebuild.py`.

Source: TimerMessageStore.recover and TimerFlushService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.store.timer.layouts import (
    CHECK_BYTES,
    KIND_ROLL,
    PRECISION_MS,
    SLOTS,
    UNIT_BYTES,
    WHEEL_BYTES,
    TimerCheck,
    TimerSlot,
    TimerUnit,
    encode_check,
)
from kourou.store.timer.slot_choice import BLANK_SLOTS, SlotChoice
from kourou.store.timer.timer_log import TIMER_LOG, TimerLog
from kourou.store.timer.wheel import TimerWheel
from kourou.store.timer.wheel_files import (
    TIMER_CHECK,
    TIMER_WHEEL,
    has_finer_slots,
    is_check_damaged,
    is_wheel_file,
    newest_wheel,
    read_check,
    read_wheel,
)

log = logging.getLogger(__name__)

_ACTED_MS: Final = 2**62
"""`TimerCheck.exact_from_ms` of files that lack what a slave has left to its master."""

QueueOffsetOf = Callable[[int], int | None]
"""Returns the queue offset of the record at a commit log position; None if there is none."""


@dataclass(slots=True)
class FlushPlan:
    """The writes and syncs of one flush.

    Attributes:
        check: contents of the check file.
        covered_at: the commit log must be synced to this position before `run_flush`.
        pages: (file offset, contents) of the wheel's changed pages.
        files, directories: those to sync for the timer log.
    """

    check: TimerCheck
    covered_at: int
    pages: Sequence[tuple[int, bytes]]
    files: list[str]
    directories: list[str]


class TimerFiles:
    """The timer log, the wheel, and their positions.

    Attributes:
        log: the units.
        wheel: the slots.
        check: contents of the check file.
        read_at_ms: slots before this one are done.
        queue_offset: of the first message of the timer topic that is not in the log yet.
        scan_from: commit log position before all possible deliveries from slots from `read_at_ms`
            on; None if unknown, or if there can be none.
        window_ms, exact_from_ms: see `TimerCheck`.
        is_changed: the check file is outdated.
        is_frozen: a sync failed; nothing more is made durable until the next start.
    """

    def __init__(self, disk: Disk, log_file_bytes: int) -> None:
        """Open the existing files, which `recover` then makes consistent; creates none.

        Args:
            disk: holds the store.
            log_file_bytes: file size of a new timer log; an existing one keeps its size.

        Raises:
            StoreConfigError: the log's files have different sizes.
            OSError: a file cannot be read.
        """
        self._disk = disk
        self.log = TimerLog(disk, log_file_bytes)
        self.wheel = TimerWheel()
        self.check = read_check(disk)
        self.read_at_ms = 0
        self.queue_offset = 0
        self.scan_from: int | None = None
        self.window_ms = self.exact_from_ms = 0
        self.is_changed = False
        self.is_frozen = False
        self._has_wheel_file = disk.exists(TIMER_WHEEL)
        self._has_check_file = disk.exists(TIMER_CHECK)

    def rebuild_reason(self, topic_end: int, log_end: int, *, was_kourou: bool) -> str | None:
        """Return the reason why the files do not contain all waiting messages; None if they do.

        Args:
            topic_end: the queue offset after the last message of the timer topic.
            log_end: the end of the commit log.
            was_kourou: Kourou had the store open last, not Java.

        Raises:
            OSError: a file cannot be read.
        """
        check, end = self.check, self.log.segments.end
        if not check.read_at_ms:
            return f"{TIMER_CHECK} is missing or empty" if topic_end else None
        if was_kourou and is_check_damaged(self._disk):
            return f"{TIMER_CHECK} does not match its checksum"
        if check.log_position > end:
            return f"{TIMER_LOG} ends at byte {end}, not at {check.log_position}"
        if check.covered_at is not None and check.covered_at > log_end:
            return f"{TIMER_CHECK} is of a log up to {check.covered_at}, which ends at {log_end}"
        if check.scan_from is None and has_finer_slots(self._disk):
            return f"{TIMER_WHEEL} has slots of less than a second (timerPrecisionMs)"
        return None

    def lacks_units(self) -> bool:
        """Return whether slots that are not done begin in removed files of the log."""
        first = self.log.segments.first
        return any(0 <= slot.first < first for slot in self.wheel.slots())

    def recover(self, now_ms: int, queue_offset_of: QueueOffsetOf, *, was_clean: bool) -> None:
        """Make wheel and log consistent with the check file, after `rebuild_reason` returned None.

        Args:
            now_ms: the current time.
            queue_offset_of: used if Java wrote the files last.
            was_clean: the store was closed cleanly.

        Raises:
            OSError: a file cannot be read or written.
        """
        now_at_ms = now_ms // PRECISION_MS * PRECISION_MS
        check = self.check
        self.read_at_ms = check.read_at_ms // PRECISION_MS * PRECISION_MS
        if not check.read_at_ms:
            has_log = self.log.segments.end > self.log.segments.first
            back_ms = (SLOTS // 2 - BLANK_SLOTS) * PRECISION_MS
            self.read_at_ms = now_at_ms - back_ms if has_log else now_at_ms
        self.queue_offset = max(0, check.queue_offset)
        self.window_ms, self.exact_from_ms = check.window_ms, check.exact_from_ms
        if check.scan_from is not None:
            self._recover_kourou(was_clean=was_clean)
        else:
            self._recover_java(queue_offset_of)

    # Recovery

    def _recover_kourou(self, *, was_clean: bool) -> None:
        end = self.check.log_position
        self._load_wheel()
        self.scan_from = self.check.scan_from
        self._unlink_units_from(end)
        self._write_wheel(self.wheel.take_dirty())
        if was_clean:
            self.log.start_at(end)
        else:
            self.log.truncate(end)

    def _recover_java(self, queue_offset_of: QueueOffsetOf) -> None:
        snapshot = self._load_wheel()
        first = self.log.segments.first
        start = max(first, min(self.check.log_position, snapshot))
        end, last = start, None
        for position, unit in self.log.scan(start):
            self._add_missing_unit(position, unit)
            end, last = position + UNIT_BYTES, unit
        self._unlink_units_from(end)
        if last is None and end > first:
            last = self.log.unit(end - UNIT_BYTES)
        offset = queue_offset_of(last.physical_offset) if last is not None else None
        if offset is not None:
            self.queue_offset = max(self.queue_offset, offset + 1)
        self._count_slots()
        self._write_wheel(self.wheel.take_dirty())
        self.log.truncate(end)
        for name in self._disk.list(""):
            if name != TIMER_WHEEL and is_wheel_file(name):
                self._disk.unlink(name)

    def _count_slots(self) -> None:
        """Correct the count and the first unit of each slot, which Java may leave wrong."""
        for slot in self.wheel.slots():
            messages, first = 0, -1
            try:
                for position, unit in self.log.chain(slot.last):
                    messages, first = messages + unit.weight, position
            except CorruptRecordError:
                continue  # reported when the slot is due
            if (slot.first, slot.messages) != (first, messages):
                self.wheel.put(slot._replace(first=first, messages=messages))
                self.wheel.count += messages - slot.messages

    def _add_missing_unit(self, position: int, unit: TimerUnit) -> None:
        """Add a unit to its slot, if the slot does not contain it yet and is not done."""
        if unit.second * PRECISION_MS < self.read_at_ms:
            return
        slot = self.wheel.slot(unit.second)
        if slot is None or slot.last < position:
            self.wheel.add(unit.second, position, unit.weight, slot)

    def _load_wheel(self) -> int:
        """Load the wheel or rebuild it from the log; return the log position that it covers."""
        name, position = newest_wheel(self._disk, self.check.log_position)
        if self._disk.exists(name) and self._disk.size(name) == WHEEL_BYTES:
            self.wheel = read_wheel(self._disk, name, self.read_at_ms // PRECISION_MS)
            if name != TIMER_WHEEL:
                self.wheel.mark_all_dirty()
            return position
        if self.check.log_position > self.log.segments.first:
            self._rebuild_wheel(self.check.log_position)
        return position

    def _rebuild_wheel(self, end: int) -> None:
        """Rebuild the wheel from all units of the log before `end`."""
        log.warning("timer_wheel.rebuilt until=%d", end)
        self.wheel = TimerWheel()
        for position, unit in self.log.scan(self.log.segments.first):
            if position >= end:
                break
            self._add_missing_unit(position, unit)

    def _unlink_units_from(self, end: int) -> None:
        """Unlink units at or after `end` from all slots."""
        try:
            for slot in self.wheel.slots():
                if slot.last >= end:
                    self._unlink_slot_units(slot, end)
        except CorruptRecordError as error:
            log.warning("timer_wheel.damaged reason=%s", error)
            self._rebuild_wheel(end)

    def _unlink_slot_units(self, slot: TimerSlot, end: int) -> None:
        messages = slot.messages
        last = -1
        for position, unit in self.log.chain(slot.last):
            if position < end:
                last = position
                break
            messages -= unit.weight
        if last < 0:
            messages = 0
        first = slot.first if last >= 0 else -1
        self.wheel.put(TimerSlot(slot.second, first, last, messages))
        self.wheel.count -= slot.messages - messages

    # What changes

    def add(self, choice: SlotChoice, unit: TimerUnit) -> int:
        """Append a unit to the log as the last of its slot, and return its log position.

        Args:
            choice: its slot.
            unit: without `previous`, and without the roll bit of `kind`.

        Raises:
            OSError: a new file of the log could not be created; nothing was changed.
        """
        slot = self.wheel.slot(choice.second)
        kind = unit.kind | KIND_ROLL if choice.is_roll else unit.kind
        unit = unit._replace(previous=-1 if slot is None else slot.last, kind=kind)
        position = self.log.append(unit)
        self.wheel.add(choice.second, position, unit.weight, slot)
        self.is_changed = True
        return position

    def add_all(self, units: Sequence[tuple[SlotChoice, TimerUnit]]) -> int:
        """Append units as `add` does, with one change of the wheel for each slot.

        Returns:
            The number of units that were appended: fewer than all if a new file of the log could
            not be created.
        """
        slots: dict[int, tuple[int, int, int]] = {}  # second -> first, last unit, weight
        wheel, log, count = self.wheel, self.log, 0
        for choice, unit in units:
            second = choice.second
            known = slots.get(second)
            if known is None:
                slot = wheel.slot(second)
                first, last, weight = -1, -1 if slot is None else slot.last, 0
            else:
                first, last, weight = known
            kind = unit.kind | KIND_ROLL if choice.is_roll else unit.kind
            linked = TimerUnit(last, kind, *unit[2:])
            try:
                position = log.append(linked)
            except OSError:
                break
            slots[second] = (position if first < 0 else first, position, weight + linked.weight)
            count += 1
        for second, (first, last, weight) in slots.items():
            wheel.add_chain(second, (first, last), weight)
        self.is_changed = self.is_changed or count > 0
        return count

    def note_window(self, window_ms: int) -> None:
        """Note the window by which slots are chosen from now on; see `choose_slot`."""
        if window_ms == self.window_ms:
            return
        last = self.wheel.last_second
        if last is not None:
            self.note_inexact(last)
        if self.window_ms:  # messages may be taken in again, into other slots
            self.note_inexact((self.read_at_ms + max(self.window_ms, window_ms)) // PRECISION_MS)
        self.window_ms = window_ms

    def note_inexact(self, second: int) -> None:
        """Note that a slot has messages which other replicas may have in an earlier one."""
        self.exact_from_ms = max(self.exact_from_ms, (second + 1) * PRECISION_MS)

    def note_acted(self) -> None:
        """Note that a slave uses the files while it acts: it leaves messages to its master."""
        self.exact_from_ms = _ACTED_MS
        self.is_changed = True

    @property
    def was_acted(self) -> bool:
        """Whether a slave that acted for its master used the files."""
        return self.check.exact_from_ms == _ACTED_MS

    def mark_done(self, second: int) -> None:
        """Mark all slots up to and including this one as done."""
        self.wheel.mark_done(second)
        self.read_at_ms = (second + 1) * PRECISION_MS
        self.is_changed = True

    def skip_to(self, read_at_ms: int) -> None:
        """Advance `read_at_ms` over empty slots.

        The check file counts as outdated only if slaves can follow from now on.
        """
        if self.read_at_ms < self.exact_from_ms <= read_at_ms:
            self.is_changed = True
        self.read_at_ms = max(self.read_at_ms, read_at_ms)

    # Making durable

    def plan_flush(self, now_ms: int, scan_from: int, covered_at: int) -> FlushPlan | None:
        """Return the next flush; None if nothing has changed, or after a failed sync.

        Appended units must have been written. Only one plan may exist at a time.

        Args:
            now_ms: the current time.
            scan_from: see `TimerFiles.scan_from`; for the next start.
            covered_at: see `FlushPlan.covered_at`: the written position of the commit log. A log
                that is cut there has other deliveries behind it.
        """
        if self.is_frozen or not self.is_changed:
            return None
        self.is_changed = False
        check = self.check._replace(
            read_at_ms=self.read_at_ms,
            log_position=self.log.position,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
            changed_at_ms=now_ms,
            counter=self.check.counter + 1,
            scan_from=min(scan_from, covered_at),
            covered_at=covered_at,
            window_ms=self.window_ms,
            exact_from_ms=self.exact_from_ms,
        )
        return FlushPlan(check, covered_at, self.wheel.take_dirty(), *self.log.take_unsynced())

    def run_flush(self, plan: FlushPlan) -> None:
        """Make the plan durable; runs on any thread, one call at a time.

        Raises:
            OSError: the plan may be partly durable. If a sync failed, `is_frozen` is set.
        """
        self._sync(plan.files, plan.directories)
        self._write_wheel(plan.pages)
        if not self._has_check_file:
            self._disk.truncate(TIMER_CHECK, CHECK_BYTES)
        self._disk.write(TIMER_CHECK, 0, [encode_check(plan.check)])
        self._sync([TIMER_CHECK], [] if self._has_check_file else ["config"])
        self._has_check_file = True

    def flush_succeeded(self, plan: FlushPlan) -> None:
        """Record that `run_flush` succeeded."""
        self.check = plan.check

    def flush_failed(self, plan: FlushPlan) -> None:
        """Record that `run_flush` raised: the next plan includes the contents of this one."""
        self.is_changed = True
        self.wheel.mark_dirty(plan.pages)
        self.log.mark_unsynced(plan.files, plan.directories)

    def _sync(self, files: Sequence[str], directories: Sequence[str]) -> None:
        try:
            self._disk.sync_all(files, directories)
        except OSError:
            self.is_frozen = True
            raise

    def _write_wheel(self, pages: Sequence[tuple[int, bytes]]) -> None:
        """Write pages of the wheel, durably."""
        if not pages and self._has_wheel_file:
            return
        if not self._has_wheel_file or self._disk.size(TIMER_WHEEL) != WHEEL_BYTES:
            if not pages:
                return
            self._disk.truncate(TIMER_WHEEL, 0)
            self._disk.truncate(TIMER_WHEEL, WHEEL_BYTES)
        for at, page in pages:
            self._disk.write(TIMER_WHEEL, at, [page])
        self._sync([TIMER_WHEEL], [] if self._has_wheel_file else [""])
        self._has_wheel_file = True
