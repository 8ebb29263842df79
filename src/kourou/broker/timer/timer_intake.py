"""Intake of the timer topic into the wheel: each message gets a unit in the timer log.

Messages are read from the topic, except those that this broker has just stored itself and told of
(`feed`). The feed only saves reads: what it lacks is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from kourou.broker.context import BrokerContext
from kourou.broker.timer.near_slots import DueEntry, pack_entry, unit_due_ms
from kourou.broker.timer.timer_counts import TimerCounts
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.hashing import java_string_hash
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import GetRequest, GetResult
from kourou.store.timer.layouts import KIND_DEFAULT, PRECISION_MS, TimerUnit
from kourou.store.timer.slot_choice import (
    ROLL_WINDOW_SLOTS_MAX,
    SlotChoice,
    choose_slot,
    out_ms,
)
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_record import RecallKey, TimerRecord, read_timer_record, unit_of

log = logging.getLogger(__name__)

_BYTES_MAX: Final = 1024 * 1024

FED_MAX: Final = 65_536
"""Limit on fed messages that are not in the wheel, 10 MB; more are forgotten, and read."""

INTAKE_INTERVAL_MS: Final = 20
"""Time between two intakes: each costs as much as the messages of several. A pop stores two in the
timer topic, its checkpoint and its ack."""
CLOCK_BACK_MS: Final = 60_000
"""A record whose store time is this far ahead was stored before the clock was set back."""
SOON_MS: Final = 1_000
"""After a message that is due within this time, intakes follow each other at once for this time."""


class IntakePace:
    """Tells when the next intake is: soon enough for each due time, and otherwise rarely."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Call `wake` when an intake that was put off is due."""
        self._wake = wake
        self._began_at_ms = self._hurries_until_ms = 0
        self._pause: asyncio.TimerHandle | None = None

    def placed(self, delay_ms: int) -> None:
        """Note that a message will arrive which is due after this time."""
        if delay_ms <= SOON_MS:
            self._hurries_until_ms = steady_ms() + SOON_MS

    def begin(self) -> None:
        """Note that an intake begins."""
        self._began_at_ms = steady_ms()
        self.stop()

    def wait_ms(self) -> int:
        """Return the time to the next intake; 0 if it is due."""
        now_ms = steady_ms()
        if now_ms < self._hurries_until_ms:
            return 0
        return max(0, self._began_at_ms + INTAKE_INTERVAL_MS - now_ms)

    def arrived(self) -> None:
        """Wake the intake for a message that arrived, now or when it is due."""
        wait_ms = self.wait_ms()
        if not wait_ms:
            self._wake()
        elif self._pause is None:
            loop = asyncio.get_running_loop()
            self._pause = loop.call_later(wait_ms / 1000, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._wake()

    def stop(self) -> None:
        """Forget an intake that was put off."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None


class FedMessage(NamedTuple):
    """A stored message of the timer topic, no recall.

    Attributes:
        queue_offset: in the timer topic.
        physical_offset, size: of its record.
        stored_at_ms: store time of the record, epoch milliseconds.
        due_at_ms: its exact time, epoch milliseconds.
    """

    queue_offset: int
    physical_offset: int
    size: int
    stored_at_ms: int
    due_at_ms: int


class OnEnqueued(Protocol):
    """Called for each message that got a unit; see `LoadedSlots.enqueue`."""

    def __call__(
        self, second: int, entry: DueEntry | None, key: RecallKey, *, is_new: bool
    ) -> None: ...


class OnFed(Protocol):
    """Called with messages of one slot that got units; see `LoadedSlots.enqueue_all`."""

    def __call__(self, second: int, numbers: Iterable[int], *, is_new: bool) -> None: ...


class TimerIntake:
    """Reads the timer topic and adds its messages to the wheel.

    Attributes:
        files: the timer's files; must be set before any method is called.
        is_failing: the last write of the timer log failed.
    """

    files: TimerFiles

    def __init__(
        self,
        context: BrokerContext,
        counts: TimerCounts,
        on_enqueued: OnEnqueued,
        on_fed: OnFed,
        window_ms: Callable[[], int],
        *,
        is_following: bool = False,
    ) -> None:
        """Read messages of the store.

        Args:
            context: the broker's state and services.
            counts: count the messages.
            on_enqueued: called with each message that got a unit.
            on_fed: called with fed messages that got units.
            window_ms: see `choose_slot`.
            is_following: a slave's: slots follow from the records alone, also if its clock is
                behind that of the master that stored them.
        """
        self._window_ms = window_ms
        self._is_following = is_following
        self._fed: deque[FedMessage] = deque()
        self._fed_topic = ""
        self._on_fed = on_fed
        self._reader = context.store.reader
        self._writer = context.store.writer
        self._counts = counts
        self._on_enqueued = on_enqueued
        self._clock = context.clock
        self._offload = context.offload
        self.is_failing = False

    @property
    def end(self) -> int:
        """The queue offset after the topic's last message."""
        return self._reader.max_offset(TIMER_TOPIC, 0)

    @property
    def lag(self) -> int:
        """Number of messages that are not in the wheel yet."""
        return max(0, self.end - self.files.queue_offset) if hasattr(self, "files") else 0

    @property
    def is_behind(self) -> bool:
        """Whether there are messages that are not in the wheel yet."""
        return hasattr(self, "files") and self.end > self.files.queue_offset

    def clamp(self) -> None:
        """Move the progress into the bounds of the topic's queue."""
        first = self._reader.min_offset(TIMER_TOPIC, 0)
        offset = max(first, min(self.files.queue_offset, self.end))
        if offset != self.files.queue_offset:
            log.warning("timer_intake.clamped from=%d to=%d", self.files.queue_offset, offset)
            self.files.queue_offset = offset
            self.files.is_changed = True

    def failed(self, error: OSError) -> None:
        """Note that the timer log could not be written; logged once."""
        if not self.is_failing:
            log.error("timer_intake.failed error=%s", error)
        self.is_failing = True

    async def enqueue(self, count: int) -> None:
        """Put the next messages into the wheel, at most `count`.

        Raises:
            OSError: the log cannot be written; the state in memory stays consistent.
        """
        files = self.files
        files.note_window(self._window_ms())
        files.log.write()  # units that a failed write left
        if self.is_behind:
            count -= self._enqueue_fed(count)
            files.log.write()  # before a slot that has these units is read or flushed
        if self.is_behind and count > 0:
            if self._fed:
                count = min(count, self._fed[0].queue_offset - files.queue_offset)
            found = await self._read(count)
            for record in found.records():
                self._add(record)
            if found.plan.next_offset > files.queue_offset:
                files.queue_offset = found.plan.next_offset
                files.is_changed = True
            elif not found.plan.count:
                raise OSError(f"{TIMER_TOPIC} cannot be read at queue offset {files.queue_offset}")
            files.log.write()
        self.is_failing = False

    def feed(self, topic: str, messages: Iterable[FedMessage]) -> None:
        """Note stored messages for a topic, the same in all calls, in the order of the queue."""
        if len(self._fed) >= FED_MAX:
            self._fed.clear()
        self._fed_topic = topic
        self._fed.extend(messages)

    def _enqueue_fed(self, count: int) -> int:
        """Put the next messages into the wheel, as far as they were fed; return their number.

        Raises:
            OSError: the log cannot be written.
        """
        files, fed = self.files, self._fed
        while fed and fed[0].queue_offset < files.queue_offset:
            fed.popleft()
        taken: list[FedMessage] = []
        following = files.queue_offset
        while fed and fed[0].queue_offset == following and len(taken) < count:
            taken.append(fed.popleft())
            following += 1
        if taken:
            self._add_fed(taken)
        return len(taken)

    def _add_fed(self, taken: Sequence[FedMessage]) -> None:
        files, now_ms = self.files, self._clock.now_ms()
        topic_hash = java_string_hash(self._fed_topic)
        choices: dict[tuple[int, int], SlotChoice] = {}
        units: list[tuple[SlotChoice, TimerUnit]] = []
        numbers: dict[int, list[int]] = {}
        for _, position, size, stored_at_ms, due_at_ms in taken:
            out_at_ms, stored_s = out_ms(due_at_ms), stored_at_ms // PRECISION_MS
            choice = choices.get((out_at_ms, stored_s))
            if choice is None:
                choice = self._choose(out_at_ms, stored_at_ms, now_ms)
                choices[out_at_ms, stored_s] = choice
            units.append((choice, unit_of((position, size), topic_hash, due_at_ms, choice, now_ms)))
        new = {choice.second for choice in choices.values()}
        new = {second for second in new if files.wheel.slot(second) is None}
        count = files.add_all(units)
        for ((second, is_roll, roll_at_ms), unit), message in zip(
            units[:count], taken, strict=False
        ):
            due_at_ms = roll_at_ms if is_roll else unit_due_ms(unit)
            packed = pack_entry(due_at_ms, message.physical_offset, message.size, is_roll)
            numbers.setdefault(second, []).append(packed)
        files.queue_offset += count
        self._counts.enqueued_all(self._fed_topic, count)
        for second, some in numbers.items():
            self._on_fed(second, some, is_new=second in new)
        if count < len(taken):
            self._fed.extendleft(reversed(taken[count:]))
            raise OSError("a file of the timer log could not be created")

    async def _read(self, count: int) -> GetResult:
        """Read messages; damaged ones are logged and skipped, so that they block no others."""
        get_request = GetRequest(self.files.queue_offset, count, _BYTES_MAX, None)
        found = self._reader.get_resident(TIMER_TOPIC, 0, get_request)
        if found is not None:
            return found
        found = await self._offload(
            self._reader.get, TIMER_TOPIC, 0, get_request, skip_damaged=True
        )
        self._writer.write_repaired(found.repaired)
        for damage in found.skipped:
            log.error(
                "timer_record.damaged queue_offset=%d file=%s file_offset=%d reason=%s",
                damage.queue_offset, damage.file, damage.file_offset, damage.reason,
            )  # fmt: skip
        return found

    def _add(self, record: bytes) -> None:
        try:
            timer = read_timer_record(record)
        except MalformedMessageError as error:
            log.error("timer_record.passed_over reason=%s", error)  # noqa: TRY400 - no traceback needed
            return
        now_ms = self._clock.now_ms()
        self._put(timer, self._choose(timer.out_at_ms, timer.header.store_at_ms, now_ms), now_ms)
        self.files.queue_offset = timer.header.queue_offset + 1
        self._counts.enqueued(timer)

    def _put(self, timer: TimerRecord, choice: SlotChoice, now_ms: int) -> None:
        unit = timer.unit(choice, now_ms)
        is_new = self.files.wheel.slot(choice.second) is None
        self.files.add(choice, unit)
        self._notify(timer, choice, unit, is_new=is_new)

    def wait_on(self, timer: TimerRecord, now_ms: int) -> bool:
        """Put a message that had to be rolled into a later slot, that of its time if possible.

        Returns:
            False if the timer log cannot be written.
        """
        window_ms = ROLL_WINDOW_SLOTS_MAX * PRECISION_MS
        choice = choose_slot(timer.out_at_ms, now_ms, self.files.read_at_ms, window_ms)
        try:
            self._put(timer, choice, now_ms)
        except OSError as error:
            self.failed(error)
            return False
        return True

    def is_rolled(self, timer: TimerRecord) -> bool:
        """Return whether a message was rolled, or had to be."""
        wait_ms = timer.out_at_ms - timer.header.store_at_ms
        return names.TIMER_ROLL_TIMES in timer.properties or wait_ms >= self.files.window_ms

    def _choose(self, out_at_ms: int, stored_at_ms: int, now_ms: int) -> SlotChoice:
        files = self.files
        is_ahead = stored_at_ms > now_ms + CLOCK_BACK_MS and not self._is_following
        if is_ahead:  # the age of the record counts from now on
            stored_at_ms = now_ms
        choice = choose_slot(out_at_ms, stored_at_ms, files.read_at_ms, files.window_ms)
        if is_ahead:
            files.note_inexact(choice.second)
        return choice

    def _notify(
        self, timer: TimerRecord, choice: SlotChoice, unit: TimerUnit, *, is_new: bool
    ) -> None:
        entry = None
        if not timer.is_delete or choice.is_roll:
            due_at_ms = choice.roll_at_ms if choice.is_roll else unit_due_ms(unit)
            entry = DueEntry(due_at_ms, unit.physical_offset, unit.size, choice.is_roll)
        self._on_enqueued(choice.second, entry, timer.key, is_new=is_new)

    def move(self, entry: DueEntry, second: int) -> None:
        """Give a message a unit in another slot.

        Raises:
            OSError: as `TimerFiles.add`.
        """
        written_at_ms = self._clock.now_ms() // PRECISION_MS * PRECISION_MS
        unit = TimerUnit(
            -1,
            KIND_DEFAULT,
            written_at_ms,
            second * PRECISION_MS - written_at_ms,
            entry.physical_offset,
            entry.size,
            0,
            entry.due_at_ms,
        )
        self.files.add(SlotChoice(second, entry.is_roll), unit)
        self.files.note_inexact(second)
