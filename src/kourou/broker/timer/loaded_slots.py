"""Slots of the timer wheel that are in memory, and the recalled messages.

These are at most `NEAR_SLOTS` slots, the one that is being delivered and the next, plus any that
must be delivered before them. A message that arrives for a slot in memory is added there too; for
another slot, it is read with the slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from kourou.broker.context import BrokerContext
from kourou.broker.timer.near_slots import (
    NEAR_SLOTS,
    DueEntry,
    LoadedUnits,
    NearSlot,
    due_of,
    is_roll,
    load_slot,
    position_of,
)
from kourou.broker.timer.needless import NeedlessRecords
from kourou.errors import MalformedMessageError
from kourou.store.timer.layouts import PRECISION_MS, TimerSlot
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_record import RecallKey, read_timer_record

log = logging.getLogger(__name__)

FAILED_RETRY_MS: Final = 10_000
_STORED_WITHIN_MS: Final = 60_000
"""Time after which a recall is in the wheel, or was refused."""


DROPPED_MAX: Final = 2_048
"""Limit on needless messages dropped before other tasks may run: about 2 ms."""


class DueMessages(NamedTuple):
    """Messages that were due.

    Attributes:
        due: slot and encoded message of each to deliver.
        dropped: number of messages that were dropped, because they are needless.
    """

    due: list[tuple[NearSlot, int]]
    dropped: int


class TimerLevel:
    """The time up to which all due messages are delivered; see `Timers.level_ms`.

    A mark is a time, and the end of the timer topic at that time. The mark is reached when the
    wheel has all messages below that end, and none that was due by that time is left.

    Attributes:
        at_ms: the time of the last mark that was reached; 0 before the first.
    """

    def __init__(self) -> None:
        self.at_ms = 0
        self._mark: tuple[int, int] | None = None

    def mark(self, now_ms: int, end: int) -> None:
        """Set a mark, unless the last one has not been reached yet.

        If the clock was set back, the level ends: what is accepted from now on may be due before.
        """
        if now_ms < self.at_ms:
            self.at_ms = 0
        if self._mark is None or now_ms < self._mark[0]:
            self._mark = (now_ms, end)

    def advance(self, queue_offset: int, undelivered_from_ms: int) -> None:
        """Raise the level if the mark is reached.

        Args:
            queue_offset: first message of the timer topic that is not in the wheel.
            undelivered_from_ms: no message due before this time is left in the wheel.
        """
        if self._mark is not None:
            at_ms, end = self._mark
            if queue_offset >= end and undelivered_from_ms > at_ms:
                self.at_ms, self._mark = at_ms, None


class LoadedSlots:
    """The next slots to deliver.

    Attributes:
        by_second: second -> slot.
    """

    def __init__(self, context: BrokerContext, wake: Callable[[], None]) -> None:
        """Read slots from the timer's files.

        Args:
            context: the broker's state and services.
            wake: called when a slot was read.
        """
        self._reader = context.store.reader
        self._clock = context.clock
        self._offload = context.offload
        self._wake = wake
        self.by_second: dict[int, NearSlot] = {}
        self._taken: Counter[int] = Counter()  # due times of messages being delivered
        self._recalled: dict[RecallKey, int] = {}  # -> second until which the recall is kept
        self._kept_from = self._read_second = 0
        self._loads: set[asyncio.Task[None]] = set()

    def load(self, files: TimerFiles, now_ms: int) -> None:
        """Begin to read the next slots."""
        # Messages due before the current slot wait in that slot: the clock was set back.
        self._read_second = files.read_at_ms // PRECISION_MS
        before = self._near_end(now_ms)
        for second in files.wheel.next_seconds(before, NEAR_SLOTS):
            slot = files.wheel.slot(second)
            if second in self.by_second or slot is None or not _is_written(slot, files):
                continue
            if len(self.by_second) >= NEAR_SLOTS and second > max(self.by_second):
                continue  # an earlier slot takes precedence; this one waits until that is done
            near = self.by_second[second] = NearSlot(second, is_loading=True)
            task = asyncio.get_running_loop().create_task(self._fill(files, near, slot.last))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    def next_load_ms(self, files: TimerFiles) -> int | None:
        """Return the time from which `load` reads another slot; None if it has to wait for others.

        Also if its units could not be written yet: they are written again before each `load`.
        """
        if len(self.by_second) >= NEAR_SLOTS:
            return None
        for second in files.wheel.next_seconds(2**62, NEAR_SLOTS):
            slot = files.wheel.slot(second)
            if second not in self.by_second and slot is not None:
                is_written = _is_written(slot, files)
                return (second - NEAR_SLOTS + 1) * PRECISION_MS if is_written else None
        return None

    def _near_end(self, now_ms: int) -> int:
        """Return the first second whose slot must not be in memory yet."""
        return max(now_ms // PRECISION_MS, self._read_second) + NEAR_SLOTS

    def has_all(self, files: TimerFiles, last: int) -> bool:
        """Return whether all slots with messages, up to this second, have been read."""
        slots = self.by_second
        waiting = files.wheel.next_seconds(last + 1, len(slots) + 1)
        return all(one in slots and not slots[one].is_loading for one in waiting)

    def end(self) -> None:
        """Stop reading slots."""
        for task in self._loads:
            task.cancel()

    async def _fill(self, files: TimerFiles, near: NearSlot, last: int) -> None:
        """Read a slot, with retries; messages that arrive meanwhile have units after `last`."""
        loaded: LoadedUnits | None = None
        while loaded is None:
            try:
                loaded = await self._offload(
                    load_slot, files.log, near.second, last, self._reader.read_record
                )
            except Exception:  # a failing read must not stop the slot's delivery for good
                log.exception("timer_slot.not_loaded second=%d", near.second)
                await asyncio.sleep(FAILED_RETRY_MS / 1000)
        for record in loaded.deletes:
            try:
                self._recalled[read_timer_record(record).key] = near.second + 1
            except MalformedMessageError as error:
                log.error("timer_record.passed_over reason=%s", error)  # noqa: TRY400 - no traceback
        if near.heap:
            near.heap += loaded.heap
            heapify(near.heap)
        else:
            near.heap = loaded.heap
        near.is_loading = False
        self._wake()

    def enqueue(self, second: int, entry: DueEntry | None, key: RecallKey, *, is_new: bool) -> None:
        """Note a message that was put into the wheel; without an entry it is a recall.

        Args:
            second: second of its slot.
            entry: the message.
            key: key of the message, or of the message that it recalls.
            is_new: it is the first message of its slot.
        """
        near = self._near(second, is_new=is_new)
        if near is None:
            return  # it will be read with its slot
        if entry is None:
            self._recalled[key] = second + 1
        else:
            heappush(near.heap, entry.pack())

    def enqueue_all(self, second: int, numbers: Iterable[int], *, is_new: bool) -> None:
        """Note encoded messages of one slot, no recalls; see `enqueue`."""
        near = self._near(second, is_new=is_new)
        if near is not None:
            for number in numbers:
                heappush(near.heap, number)

    def _near(self, second: int, *, is_new: bool) -> NearSlot | None:
        """Return the slot of a message that was put into the wheel; None if it is not in memory."""
        near = self.by_second.get(second)
        has_room = is_new and len(self.by_second) < NEAR_SLOTS
        if has_room and second < self._near_end(self._clock.now_ms()):
            near = self.by_second[second] = NearSlot(second)
        return near

    def pop_due(self, now_ms: int, count: int, needless: NeedlessRecords) -> DueMessages:
        """Remove the messages that are due, earliest slot first.

        Args:
            now_ms: the time.
            count: limit of the messages to deliver.
            needless: messages to drop instead.
        """
        due: list[tuple[NearSlot, int]] = []
        dropped = 0
        for second in sorted(self.by_second):
            near = self.by_second[second]
            heap, positions = near.heap, needless.by_second.get(second, ())
            while heap and len(due) < count and due_of(heap[0]) <= now_ms:
                number = heappop(heap)
                if position_of(number) in positions and not is_roll(number):
                    dropped += 1
                    if dropped == DROPPED_MAX:
                        return DueMessages(due, dropped)
                    continue
                near.outstanding += 1
                self._taken[due_of(number)] += 1
                due.append((near, number))
        return DueMessages(due, dropped)

    def push_back(self, due: Sequence[tuple[NearSlot, int]]) -> None:
        """Return messages of `pop_due` to their slots."""
        for near, number in due:
            self.settle(near, number)
            heappush(near.heap, number)

    def settle(self, near: NearSlot, number: int) -> None:
        """Note the end of the delivery of a message of `pop_due`."""
        near.outstanding -= 1
        due_at_ms = due_of(number)
        self._taken[due_at_ms] -= 1
        if not self._taken[due_at_ms]:
            del self._taken[due_at_ms]

    def first_undelivered_ms(self, files: TimerFiles) -> int:
        """Return a time before which no message of the wheel is due and undelivered."""
        slots, current = self.by_second, files.read_at_ms // PRECISION_MS
        times = [due_of(slot.heap[0]) for slot in slots.values() if slot.heap]
        # Only the current slot may have messages that are due before it.
        loading = [second for second, slot in slots.items() if slot.is_loading]
        times += [second * PRECISION_MS + 1 if second > current else 0 for second in loading]
        times.append(min(self._taken, default=2**62))
        seconds = files.wheel.next_seconds(2**62, len(slots) + 1)
        times += [second * PRECISION_MS + 1 for second in seconds if second not in slots][:1]
        return min(times)

    # Recalls

    def recall(self, key: RecallKey, at_ms: int) -> None:
        """Recall a message with immediate effect; `at_ms` is a time within its slot's second."""
        now_ms = self._clock.now_ms()
        if at_ms - now_ms < _STORED_WITHIN_MS:  # a later recall is read with its slot
            second = max(max(at_ms, now_ms) // PRECISION_MS, self._read_second)
            self._recalled[key] = second + 1

    def recall_all(self, keys: Iterable[RecallKey]) -> None:
        """Recall messages that may already be due."""
        now_ms = self._clock.now_ms()
        for key in keys:
            self.recall(key, now_ms)

    def undo_recall(self, key: RecallKey) -> None:
        """Undo a recall that could not be stored."""
        self._recalled.pop(key, None)

    def is_recalled(self, key: RecallKey) -> bool:
        """Return whether the message was recalled."""
        return key in self._recalled

    def drop_recalls(self, second: int) -> None:
        """Drop the recalls for slots before a second."""
        if second != self._kept_from and self._recalled:
            self._recalled = {key: at for key, at in self._recalled.items() if at >= second}
        self._kept_from = second


def _is_written(slot: TimerSlot, files: TimerFiles) -> bool:
    """Return whether the slot can be read: the disk may have refused its last units."""
    return slot.last < files.log.written_end
