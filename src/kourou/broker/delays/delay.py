"""Delivery of delayed messages: a message that is due is stored again in its destination queue.

A message of level n is stored in queue n - 1 of SCHEDULE_TOPIC_XXXX. All messages of a level have
the same delay, so they are due in the order of their queue, and only the first of each queue has to
be examined. Its queue entry holds the time at which it is due (`placement.py`).

The progress of each level is saved in `config/delayOffset.json`: the queue offset of its first
message that was not delivered. The saved progress may lag behind the deliveries; it is never ahead
of the synced log. After a crash, deliveries beyond it are found in the log before any message is
delivered.

    first message of a level                    action
    due later than its level's delay allows:    it waits for its level's delay from its arrival, or
    the clock was set back                      from the start on
    it has no valid destination, its topic      logged and skipped
    does not exist or is reserved for the
    broker, or its segment was removed
    its record is damaged                       the level waits, and logs it; skipped only with
                                                `skip_damaged_records`
    its entry was in the file at the start      verified against its record, which also tells when
                                                it is due
    the store refuses it temporarily            tried again after 1 to 10 s
    its topic is being deleted, or its          set aside: it waits in a level of a minute or more,
    deletion failed                             and the level continues

Source: ScheduleMessageService.java, apache/rocketmq 5.5.0. Java polls every 100 ms; here a timer is
set for the next message that is due. After a clock was set back, Java delivers at once, which would
use up all retries of a message within a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.context import BrokerContext
from kourou.broker.delays.delivered import due_draft, find_delivered
from kourou.broker.pulling.long_polling import Arrived
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.writing.placement import set_aside
from kourou.broker.writing.put import Destination, PutResult, PutStatus
from kourou.errors import CorruptRecordError, MalformedMessageError
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.data_version import DataVersion
from kourou.protocol.offset_table import (
    DelayOffsetTable,
    decode_delay_offset_table,
    encode_delay_offset_table,
)
from kourou.protocol.record.check import ExpectedRecord
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.read import read_record
from kourou.remoting.log_rate import LogRate
from kourou.remoting.steady_time import steady_ms
from kourou.store.formats import QueueEntry
from kourou.store.message_store import GetRequest, GetResult

log = logging.getLogger(__name__)

ARRIVALS_MAX: Final = 200
_PARTS: Final = 100
_PART_MIN_MS: Final = 100


class LevelArrival(NamedTuple):
    """Arrivals of a level: its messages below `end` were stored by `at_ms`, in the loop's time."""

    at_ms: int
    end: int


@dataclass(slots=True)
class DelayLevel:
    """One delay level.

    Attributes:
        queue_offset: first message that was not delivered.
        check_at_ms: time of the next check, in the loop's time.
        is_empty: the last check found no message.
        is_busy: its messages are being read or delivered.
        arrived: arrival times, oldest first, with a resolution of a hundredth of the delay.
        read_ahead: entries verified against their records, from `read_from` on.
    """

    number: int
    delay_ms: int
    queue_offset: int
    check_at_ms: int = 0
    is_empty: bool = True
    is_busy: bool = False
    arrived: deque[LevelArrival] = field(default_factory=lambda: deque(maxlen=ARRIVALS_MAX))
    read_ahead: Sequence[QueueEntry] = field(default=())
    read_from: int = 0

    @property
    def queue_id(self) -> int:
        """Queue id in SCHEDULE_TOPIC_XXXX."""
        return self.number - 1

    def ahead_entries(self) -> Sequence[QueueEntry]:
        """Return the entries that were read ahead and are not delivered."""
        at = self.queue_offset - self.read_from
        return self.read_ahead[at:] if 0 <= at < len(self.read_ahead) else ()

    def keep_ahead(self, wanted: Sequence[ExpectedRecord]) -> None:
        """Keep verified entries, up to the first gap in their queue offsets."""
        count = 0
        while count < len(wanted) and wanted[count].queue_offset == wanted[0].queue_offset + count:
            count += 1
        self.read_from = self.queue_offset
        self.read_ahead = [QueueEntry._make(one[1:]) for one in wanted[:count]]

    def note_arrival(self, end: int, steady: int) -> None:
        """Note the present end of the level's queue."""
        part_ms = max(_PART_MIN_MS, self.delay_ms // _PARTS)
        while self.arrived and self.arrived[0].end <= self.queue_offset:
            self.arrived.popleft()
        if self.arrived and self.arrived[-1].at_ms // part_ms == steady // part_ms:
            self.arrived.pop()
        self.arrived.append(LevelArrival(steady, end))

    def remaining_ms(self, queue_offset: int, entry_wait_ms: int, end: int, steady: int) -> int:
        """Return the remaining delay of a message, in ms.

        A message that is due later than its level's delay allows waits for that delay from its
        arrival, or from now on if it arrived before the start.

        Args:
            queue_offset: queue offset of the message.
            entry_wait_ms: remaining delay by its queue entry.
            end: end of the level's queue.
            steady: the loop's time.
        """
        if entry_wait_ms <= self.delay_ms:
            return entry_wait_ms
        if not self.arrived or self.arrived[-1].end <= queue_offset:
            self.note_arrival(end, steady)
        at_ms = next(one.at_ms for one in self.arrived if queue_offset < one.end)
        return max(0, at_ms + self.delay_ms - steady)


FILE_NAME: Final = "config/delayOffset.json"


def parse_delay_offsets(text: bytes) -> tuple[DataVersion, dict[int, int]]:
    """Decode the file: its version, and level -> queue offset.

    Raises:
        MalformedBodyError: it is not such a file.
    """
    table = decode_delay_offset_table(text)
    return table.data_version or DataVersion(), dict(table.offsets)


def load_delay_offsets(file: SavedFile) -> tuple[DataVersion, dict[int, int]]:
    """Load the file; return an empty progress if it does not exist.

    Raises:
        CorruptRecordError: neither the file nor its backup parses.
    """
    text = file.load()
    return (DataVersion(), {}) if text is None else parse_delay_offsets(text)


BATCH_MESSAGES_MAX: Final = 64
"""Limit on messages of one level that are delivered together; they share a write and a sync."""
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit on bytes of these messages; the message that exceeds it is still included."""
CHECK_INTERVAL_MS: Final = 5_000
"""Longest interval between two checks of a level: how late messages are if the clock is set
forward."""
BUSY_RETRY_MS: Final = 1_000
"""Delay before another attempt after the store was busy."""
FAILED_RETRY_MS: Final = 10_000
"""Delay before another attempt after the store or the disk failed."""


class DelayDelivery:
    """Delivers the delayed messages of one store.

    Attributes:
        offsets: level -> queue offset of its first message that was not delivered.
    """

    def __init__(
        self,
        context: BrokerContext,
        reads: VerifiedReads,
        file: SavedFile,
        destination: Destination,
    ) -> None:
        """Load the progress.

        Args:
            context: the broker's state and services.
            file: read now; written by `persist`.
            reads: reads the messages that are due.
            destination: where they are stored for consumers.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._store = context.store
        self._is_as_left = context.is_as_left
        self._puts = destination.puts
        self._delivery_queue = destination.delivery_queue
        self._stats = context.stats
        self._reads = reads
        self._clock = context.clock
        self._offload = context.offload
        self._find_delivered = partial(
            find_delivered,
            context.topics,
            context.store,
            context.disk,
            context.config.store.commitlog_segment_bytes,
        )
        self._file = file
        self._saver = ConfigSaver(
            file, self._take, context.offload, log_positions=context.store.reader
        )
        self._version, self.offsets = load_delay_offsets(file)
        self._levels = [
            DelayLevel(number, delay_ms, self.offsets.get(number, 0))
            for number, delay_ms in enumerate(context.config.delay_levels_ms, 1)
        ]
        self._delay_levels_ms = context.config.delay_levels_ms
        self._set_aside_rate = LogRate()
        self._skip_rate = LogRate()
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._timer_at_s = 0.0  # kept here because uvloop's handles lack it for timers due at once
        self._is_started = False

    def start(self, *, has_files_as_left: bool | None = None) -> None:
        """Begin to deliver; messages that became due while the broker was down come first.

        May be called again after `stop`. Progress beyond the end of a queue is set back: a crash
        lost messages that it counts.

        Args:
            has_files_as_left: whether the saved progress counts all deliveries; None: as the
                context says.
        """
        for level in self._levels:
            self._clamp(level)
        self._is_started = True
        if self._is_as_left if has_files_as_left is None else has_files_as_left:
            self.deliver_due()
            return
        for level in self._levels:
            level.is_busy = True
        self._spawn(self._recover())

    async def stop(self) -> None:
        """Begin no more deliveries, and return when those in progress have ended."""
        self._halt()
        while self._running:
            await asyncio.wait(self._running)

    def abandon(self) -> None:
        """Stop at once, like a killed process."""
        self._halt()
        for task in self._running:
            task.cancel()

    async def persist(self) -> bool:
        """Write the progress if it has changed; see `ConfigSaver.save`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        return await self._saver.save()

    async def follow(self, text: bytes) -> None:
        """Take the progress of the master, as its file has it; not while messages are delivered.

        Raises:
            MalformedBodyError: it is not such a file.
            OSError: it cannot be saved.
        """
        self._version, offsets = parse_delay_offsets(text)
        await self._offload(self._file.save, text)
        self.offsets.update(offsets)
        for level in self._levels:
            level.queue_offset = self.offsets.get(level.number, 0)

    def advance_to(self, offsets: Mapping[int, int]) -> None:
        """Take the progress of another broker of the name, where it is larger; before `start`."""
        for level in self._levels:
            if offsets.get(level.number, 0) > level.queue_offset:
                self._advance(level, offsets[level.number])

    def on_arrivals(self, arrivals: Iterable[Arrived]) -> None:
        """Check levels that were empty and got messages; called once per loop iteration."""
        is_concerned = False
        for arrival in [one for one in arrivals if one.topic == SCHEDULE_TOPIC]:
            if arrival.queue_id >= len(self._levels):
                continue
            level = self._levels[arrival.queue_id]
            end = self._store.reader.max_offset(SCHEDULE_TOPIC, arrival.queue_id)
            level.note_arrival(end, steady_ms())
            if level.is_empty:
                level.is_empty = False
                level.check_at_ms = 0
                is_concerned = True
        if is_concerned:
            self._set_timer()

    def _halt(self) -> None:
        self._is_started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _recover(self) -> None:
        """Advance over messages delivered before a crash, then begin to deliver."""
        heads = {level.queue_id: level.queue_offset for level in self._levels}
        times = (
            self._version.timestamp,
            self._clock.now_ms(),
            self._store.writer.last_store_at_ms,
        )
        try:
            passed = await self._offload(self._find_delivered, heads, *times, self._delay_levels_ms)
        except Exception:  # a repeated delivery is not a lost message
            log.exception("delay_levels.not_caught_up")
            passed = {}
        for level in self._levels:
            level.is_busy = False
            if passed.get(level.queue_id, 0) > level.queue_offset:
                self._advance(level, passed[level.queue_id])
        if self._is_started:
            self.deliver_due()
        await self._saver.save_soon()  # else another crash soon would repeat the whole search

    # Timer

    def _set_timer(self) -> None:
        """Set the timer for the first level that is to be checked."""
        times = [level.check_at_ms for level in self._levels if not level.is_busy]
        if not self._is_started or not times:
            return
        at_s = min(times) / 1000
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self.deliver_due)

    def deliver_due(self) -> None:
        """Deliver the messages that are due at the levels that are to be checked."""
        self._timer = None
        steady = steady_ms()
        for level in self._levels:
            if not level.is_busy and level.check_at_ms <= steady:
                self._check(level, steady)
        self._set_timer()

    def _check(self, level: DelayLevel, steady: int) -> None:
        level.check_at_ms = steady + FAILED_RETRY_MS
        try:
            due, wait_ms = self._due(level)
        except Exception:  # a failure must not stop the level's delivery for good
            log.exception("delay_level.failed n=%d offset=%d", level.number, level.queue_offset)
            return
        # Checks without a due message are aligned, so that an idle broker wakes up rarely.
        level.check_at_ms = min(
            steady + wait_ms, (steady // CHECK_INTERVAL_MS + 1) * CHECK_INTERVAL_MS
        )
        if due:
            self._begin(level, self._deliver(level, due))

    def _begin(self, level: DelayLevel, work: Coroutine[Any, Any, int]) -> None:
        """Run the work; the level is not checked until it ends."""
        level.is_busy = True
        self._spawn(self._finish(level, work))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _finish(self, level: DelayLevel, work: Coroutine[Any, Any, int]) -> None:
        """Wait for the work, and schedule the level's next check by its result."""
        wait_ms = FAILED_RETRY_MS
        try:
            wait_ms = await work
        except Exception:  # a failure must not stop the level's delivery for good
            log.exception("delay_level.failed n=%d offset=%d", level.number, level.queue_offset)
        level.is_busy = False
        level.check_at_ms = steady_ms() + wait_ms
        self._set_timer()

    def _due(self, level: DelayLevel) -> tuple[list[QueueEntry], int]:
        """Return the level's entries that are due, and the time to the next check in ms."""
        entries: Sequence[QueueEntry] | None = level.ahead_entries()
        if not entries:
            entries = self._store.reader.own_entries(
                SCHEDULE_TOPIC, level.queue_id, level.queue_offset, BATCH_MESSAGES_MAX
            )
        if entries is None:
            self._begin(level, self._read_ahead(level))
            return [], CHECK_INTERVAL_MS
        level.is_empty = not entries
        if level.is_empty and self._clamp(level):
            return [], 0
        now_ms, steady = self._clock.now_ms(), steady_ms()
        end = self._store.reader.max_offset(SCHEDULE_TOPIC, level.queue_id)
        due: list[QueueEntry] = []
        size = 0
        for queue_offset, entry in enumerate(entries, level.queue_offset):
            wait_ms = level.remaining_ms(queue_offset, entry.tags_code - now_ms, end, steady)
            if wait_ms > 0:
                return due, min(CHECK_INTERVAL_MS, wait_ms)
            due.append(entry)
            size += entry.size
            if len(due) == BATCH_MESSAGES_MAX or size >= BATCH_BYTES_MAX:
                break
        return due, CHECK_INTERVAL_MS

    async def _read_ahead(self, level: DelayLevel) -> int:
        """Read entries to verify with their records; return the time to the next check in ms."""
        found = await self._read(level, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX)
        if found is not None:
            level.keep_ahead(found.plan.expected)
        return 0 if found is not None else FAILED_RETRY_MS

    async def _read(self, level: DelayLevel, count: int, size: int) -> GetResult | None:
        """Read messages from the level's offset on; None if the first is damaged.

        Messages that are skipped before them count as delivered.
        """
        first = level.queue_offset
        try:
            asked = GetRequest(first, count, size, None)
            found = await self._reads.read(SCHEDULE_TOPIC, level.queue_id, asked)
        except CorruptRecordError as error:
            log.error(  # noqa: TRY400 - the offset identifies the record
                "delay_level.blocked n=%d queue_offset=%d reason=%s", level.number, first, error
            )
            return None
        begin = found.plan.expected[0].queue_offset if found.plan.count else found.plan.next_offset
        if begin > first:
            self._log_skipped(level, f"queue offsets {first} to {begin - 1} cannot be read")
            self._advance(level, begin)
        return found

    # Delivery

    async def _deliver(self, level: DelayLevel, due: Sequence[QueueEntry]) -> int:
        """Store the messages again, advance the level, return the time to its next check in ms."""
        end = level.queue_offset + len(due)
        found = await self._read(level, len(due), sum(entry.size for entry in due))
        if found is None:
            return FAILED_RETRY_MS
        now_ms = self._clock.now_ms()
        puts: list[tuple[int, asyncio.Future[PutResult] | None]] = []
        for wanted, record in zip(found.plan.expected, found.records(), strict=True):
            if wanted.queue_offset >= end:
                break  # read in place of a skipped message; it may not be due
            draft = self._draft(level, record)
            put = self._put(level, draft, record, now_ms) if draft is not None else None
            puts.append((wanted.queue_offset, put))
            if put is not None and put.done() and not put.result().is_settled:
                break  # later messages would be stored out of order, and repeated
        for queue_offset, put in puts:
            result = await put if put is not None else None
            if result is not None and not result.is_settled:
                log.warning(
                    "delay_level.put_refused n=%d queue_offset=%d status=%s reason=%s",
                    level.number, queue_offset, result.status.name, result.reason,
                )  # fmt: skip
                is_busy = result.status is PutStatus.BUSY
                return BUSY_RETRY_MS if is_busy else FAILED_RETRY_MS
            if result is not None and result.status is PutStatus.MESSAGE_ILLEGAL:
                self._log_skipped(level, result.reason)
            if result is not None and result.appended and not _is_waiting(result):
                took_ms = self._clock.now_ms() - now_ms
                self._stats.on_delivered(level.number, result.appended[0], took_ms)
            self._advance(level, queue_offset + 1)
        return 0

    def _put(
        self, level: DelayLevel, draft: RecordDraft, record: bytes, now_ms: int
    ) -> asyncio.Future[PutResult]:
        """Store a message in its destination queue, or set it aside if the topic refuses it."""
        future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()

        def done(result: PutResult) -> None:
            if result.status is PutStatus.TOPIC_REFUSED:
                self._log_set_aside(level, result.reason)
                waiting = set_aside(
                    draft, read_record(record, check_crc=False), self._delay_levels_ms
                )
                self._puts.put([waiting], now_ms, done)
            elif not future.done():
                future.set_result(result)

        self._puts.put([draft], now_ms, done)
        return future

    def _draft(self, level: DelayLevel, record: bytes) -> RecordDraft | None:
        """Return the record draft of the delivery; None if the message cannot be delivered."""
        try:
            return due_draft(record, self._delivery_queue)
        except MalformedMessageError as error:
            self._log_skipped(level, str(error))
        return None

    def _log_set_aside(self, level: DelayLevel, reason: str) -> None:
        suppressed = self._set_aside_rate.take(steady_ms() / 1000)
        if suppressed is not None:
            log.warning(
                "delay_level.set_aside n=%d suppressed=%d reason=%s",
                level.number, suppressed, reason,
            )  # fmt: skip

    def _log_skipped(self, level: DelayLevel, reason: str) -> None:
        suppressed = self._skip_rate.take(steady_ms() / 1000)
        if suppressed is not None:
            log.error(
                "delay_level.passed_over n=%d reason=%s suppressed=%d",
                level.number, reason, suppressed,
            )  # fmt: skip

    def _advance(self, level: DelayLevel, queue_offset: int) -> None:
        level.queue_offset = self.offsets[level.number] = queue_offset
        self._saver.changed()

    def _clamp(self, level: DelayLevel) -> bool:
        """Move the progress into the bounds of the queue; return whether it was outside."""
        first = self._store.reader.min_offset(SCHEDULE_TOPIC, level.queue_id)
        end = self._store.reader.max_offset(SCHEDULE_TOPIC, level.queue_id)
        queue_offset = max(first, min(level.queue_offset, end))
        if queue_offset == level.queue_offset:
            return False
        log.warning(
            "delay_level.clamped n=%d from=%d to=%d",
            level.number, level.queue_offset, queue_offset,
        )  # fmt: skip
        level.queue_offset = self.offsets[level.number] = queue_offset
        self._saver.changed()
        return True

    def table(self) -> DelayOffsetTable:
        """Return the progress of all levels in the form of the file."""
        return DelayOffsetTable(dict(self.offsets), self._version)

    def _take(self) -> TextParts:
        self._version = self._version.next(self._clock.now_ms())
        return (encode_delay_offset_table(self.table(), pretty=True),)


def _is_waiting(result: PutResult) -> bool:
    """Return whether the stored record waits in a level: the message was set aside."""
    return result.appended[0].topic == SCHEDULE_TOPIC
