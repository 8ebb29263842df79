"""The timer's files together: opened and recovered, and made durable in an order that survives.

    step    what happens                              a crash before it, and recovery
    write   units, in the timer log's file            their messages are read from the topic again
    sync    the timer log
    wheel   pages that changed are written, synced    slots may name units behind the check's
                                                      position: their chains lead back before it
    check   how far log, wheel and topic are, synced

What lies in the log behind the position of the check file is cut off at the start and made again
from the timer topic. After Java it is taken up, as Java does: Java's wheel is never written by
parts. A check is written only when the commit log is synced as far as it leans on it. Files that do
not say what waits (`lost`, `lacks_units`) are made anew of the commit log: `remaking.py`.

Source: TimerMessageStore.recover and TimerFlushService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from kourou.store.timer.placing import BLANK_SLOTS, SlotChoice
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

QueueOffsetOf = Callable[[int], int | None]
"""Tells the queue offset of the record at a byte of the commit log; None if there is none."""


@dataclass(slots=True)
class FlushPlan:
    """What one flush makes durable.

    Attributes:
        covered_at: the commit log must be synced so far before `run_flush`.
    """

    check: TimerCheck
    covered_at: int
    pages: Sequence[tuple[int, bytes]]
    files: list[str]
    directories: list[str]


class TimerFiles:
    """The timer log, the wheel, and how far they are.

    Attributes:
        log: the units.
        wheel: the slots.
        read_at_ms: slots before this one are done.
        queue_offset: of the timer topic, the first message that is not in the log yet.
        scan_from: where in the commit log what may have been delivered of slots from `read_at_ms`
            on begins; None where that is not known, or nothing can have been.
        is_changed: what the check file says is no longer all.
        is_frozen: a sync failed; nothing is made durable any more until the next start.
    """

    def __init__(self, disk: Disk, log_file_bytes: int) -> None:
        """Open what is there, which `recover` makes agree; nothing is made where nothing is.

        Args:
            disk: the store's.
            log_file_bytes: of a timer log that is made; one that is there keeps its size.

        Raises:
            StoreConfigError: the log's files do not fit together.
            OSError: a file cannot be read.
        """
        self._disk = disk
        self.log = TimerLog(disk, log_file_bytes)
        self.wheel = TimerWheel()
        self.check = read_check(disk)
        self.read_at_ms = 0
        self.queue_offset = 0
        self.scan_from: int | None = None
        self.is_changed = False
        self.is_frozen = False
        self._has_wheel_file = disk.exists(TIMER_WHEEL)
        self._has_check_file = disk.exists(TIMER_CHECK)

    def lost(self, topic_end: int, *, was_kourou: bool) -> str | None:
        """Return why what is there does not say what waits; None if it does.

        Args:
            topic_end: the queue offset behind the last message of the timer topic.
            was_kourou: Kourou had the store open last, not Java.

        Raises:
            OSError: a file cannot be read.
        """
        check, end = self.check, self.log.segments.end
        if not check.read_at_ms:
            return f"{TIMER_CHECK} says nothing" if topic_end else None
        if was_kourou and is_check_damaged(self._disk):
            return f"{TIMER_CHECK} does not match its checksum"
        if check.log_position > end:
            return f"{TIMER_LOG} ends at byte {end}, not at {check.log_position}"
        if check.scan_from is None and has_finer_slots(self._disk):
            return f"{TIMER_WHEEL} has slots of less than a second (timerPrecisionMs)"
        return None

    def lacks_units(self) -> bool:
        """Return whether slots that are not done begin in files of the log that are gone."""
        first = self.log.segments.first
        return any(0 <= slot.first < first for slot in self.wheel.slots())

    def recover(self, now_ms: int, queue_offset_of: QueueOffsetOf, *, was_clean: bool) -> None:
        """Make wheel and log agree with the check file; of what `lost` has nothing to say.

        Args:
            now_ms: the time.
            queue_offset_of: asked where Java wrote last.
            was_clean: the store was closed in order.

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
        if check.scan_from is not None:
            self._recover_ours(was_clean=was_clean)
        else:
            self._recover_javas(queue_offset_of)

    # Recovery

    def _recover_ours(self, *, was_clean: bool) -> None:
        end = self.check.log_position
        self._load_wheel()
        self.scan_from = self.check.scan_from
        if was_clean:
            self.log.start_at(end)
            return
        self._lead_back(end)
        self._write_wheel(self.wheel.take_dirty())
        self.log.cut(end)

    def _recover_javas(self, queue_offset_of: QueueOffsetOf) -> None:
        snapshot = self._load_wheel()
        first = self.log.segments.first
        start = max(first, min(self.check.log_position, snapshot))
        end, last = start, None
        for position, unit in self.log.scan(start):
            self._take_up(position, unit)
            end, last = position + UNIT_BYTES, unit
        self._lead_back(end)
        if last is None and end > first:
            last = self.log.unit(end - UNIT_BYTES)
        known = queue_offset_of(last.physical_offset) if last is not None else None
        if known is not None:
            self.queue_offset = max(self.queue_offset, known + 1)
        self._count_slots()
        self._write_wheel(self.wheel.take_dirty())
        self.log.cut(end)
        for name in self._disk.list(""):
            if name != TIMER_WHEEL and is_wheel_file(name):
                self._disk.unlink(name)

    def _count_slots(self) -> None:
        """Let each slot say how many it has, and where its chain begins: Java's may not."""
        for slot in self.wheel.slots():
            messages, first = 0, -1
            try:
                for position, unit in self.log.chain(slot.last):
                    messages, first = messages + unit.weight, position
            except CorruptRecordError:
                continue  # named when its time comes
            if (slot.first, slot.messages) != (first, messages):
                self.wheel.put(slot._replace(first=first, messages=messages))
                self.wheel.count += messages - slot.messages

    def _take_up(self, position: int, unit: TimerUnit) -> None:
        """Let a unit be in its slot, if it is not yet."""
        if unit.second * PRECISION_MS < self.read_at_ms:
            return
        slot = self.wheel.slot(unit.second)
        if slot is None or slot.last < position:
            self.wheel.add(unit.second, position, unit.weight, slot)

    def _load_wheel(self) -> int:
        """Load the wheel, or make it anew of the log; return up to where it has the log."""
        name, position = newest_wheel(self._disk, self.check.log_position)
        if self._disk.exists(name) and self._disk.size(name) == WHEEL_BYTES:
            self.wheel = read_wheel(self._disk, name, self.read_at_ms // PRECISION_MS)
            if name != TIMER_WHEEL:
                self.wheel.all_dirty()
            return position
        if self.check.log_position > self.log.segments.first:
            self._make_wheel(self.check.log_position)
        return position

    def _make_wheel(self, end: int) -> None:
        """Make the wheel anew of all units of the log before `end`."""
        log.warning("timer_wheel.rebuilt until=%d", end)
        self.wheel = TimerWheel()
        for position, unit in self.log.scan(self.log.segments.first):
            if position >= end:
                break
            self._take_up(position, unit)

    def _lead_back(self, end: int) -> None:
        """Let no slot name units at or behind `end`."""
        try:
            for slot in self.wheel.slots():
                if slot.last >= end:
                    self._lead_slot_back(slot, end)
        except CorruptRecordError as error:
            log.warning("timer_wheel.damaged reason=%s", error)
            self._make_wheel(end)

    def _lead_slot_back(self, slot: TimerSlot, end: int) -> None:
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
        """Append a unit to the log, and let it be the last of its slot.

        Args:
            choice: its slot.
            unit: all but `previous`, and of `kind` whether it is rolled.

        Raises:
            OSError: the log could not be given a new file; nothing was changed.
        """
        slot = self.wheel.slot(choice.second)
        kind = unit.kind | KIND_ROLL if choice.is_roll else unit.kind
        unit = unit._replace(previous=-1 if slot is None else slot.last, kind=kind)
        position = self.log.append(unit)
        self.wheel.add(choice.second, position, unit.weight, slot)
        self.is_changed = True
        return position

    def done(self, second: int) -> None:
        """Note that all slots up to this one are done."""
        self.wheel.done(second)
        self.read_at_ms = (second + 1) * PRECISION_MS
        self.is_changed = True

    def skip_to(self, read_at_ms: int) -> None:
        """Note that nothing is in the slots before; the check file need not say so."""
        self.read_at_ms = max(self.read_at_ms, read_at_ms)

    # Making durable

    def plan_flush(self, now_ms: int, scan_from: int, covered_at: int) -> FlushPlan | None:
        """Return what is to be made durable now; None if nothing changed.

        What was appended to the log must have been written. One plan at a time.

        Args:
            now_ms: the time.
            scan_from: see `TimerFiles.scan_from`, for the next start.
            covered_at: how far the commit log was written.
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
            scan_from=scan_from,
        )
        return FlushPlan(check, covered_at, self.wheel.take_dirty(), *self.log.take_unsynced())

    def run_flush(self, plan: FlushPlan) -> None:
        """Make the plan durable; on any thread, one at a time.

        Raises:
            OSError: it is not, or not all of it. If a sync failed, `is_frozen` is set.
        """
        self._sync(plan.files, plan.directories)
        self._write_wheel(plan.pages)
        if not self._has_check_file:
            self._disk.truncate(TIMER_CHECK, CHECK_BYTES)
        self._disk.write(TIMER_CHECK, 0, [encode_check(plan.check)])
        self._sync([TIMER_CHECK], [] if self._has_check_file else ["config"])
        self._has_check_file = True

    def flushed(self, plan: FlushPlan) -> None:
        """Note that `run_flush` succeeded."""
        self.check = plan.check

    def flush_failed(self, plan: FlushPlan) -> None:
        """Note that `run_flush` raised: the next plan has what this one had, too."""
        self.is_changed = True
        self.wheel.not_written(plan.pages)
        self.log.not_synced(plan.files, plan.directories)

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
