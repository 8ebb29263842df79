"""Delivery of scheduled messages: from the timer topic into the wheel, and to their destination.

    intake     a message of the timer topic gets a unit in the timer log, in the slot of its second
               (`TimerIntake`)
    load       the next slots are read into memory, each as a heap sorted by exact due time
    deliver    a message that is due is stored in its destination queue, unless it was recalled
    roll       a message that waits longer than the window is stored in the timer topic again on
               the way, so that its record does not expire
    set aside  a message whose topic is being deleted, or whose deletion failed, waits in a delay
               level
    done       a slot is done when all its messages are stored as durably as the flush mode requires
    flush      the progress is made durable each second (`TimerFiles`)

A kill loses the progress since the last flush. That part is read again from topic and log.
Deliveries since then are found by their records in the commit log (`delivered.py`), and are not
repeated. Java's files lack the log position to start from, so after Java the log is read from a
store time on.

Source: TimerMessageStore.java, apache/rocketmq 5.5.0. Java delivers at the end of a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.periodic_tasks import wait_woken
from kourou.broker.timer.handover import TimerHandover, TimerProgress
from kourou.broker.timer.loaded_slots import (
    DROPPED_MAX,
    FAILED_RETRY_MS,
    LoadedSlots,
    TimerLevel,
)
from kourou.broker.timer.near_slots import (
    DueEntry,
    NearSlot,
    due_of,
    unpack_entry,
)
from kourou.broker.timer.needless import NeedlessRecords
from kourou.broker.timer.scheduling import TimerPlacement
from kourou.broker.timer.timer_counts import TimerCounts
from kourou.broker.timer.timer_intake import FedMessage, IntakePace, TimerIntake
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.broker.writing.placement import set_aside
from kourou.broker.writing.put import Destination, PutResult, PutStatus
from kourou.errors import MalformedMessageError
from kourou.model.topic import TOPIC_LENGTH_MAX
from kourou.remoting.log_rate import LogRate
from kourou.remoting.steady_time import steady_ms
from kourou.store.timer.delivered import DeliveryKey
from kourou.store.timer.layouts import PRECISION_MS
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_record import (
    RecallKey,
    TimerRecord,
    due_timer_draft,
    other_delivery_key,
    read_timer_record,
    rolls_still_waiting,
)

log = logging.getLogger(__name__)

CHECK_INTERVAL_MS: Final = 30_000
"""Longest interval between two checks while a message waits, in case the clock is set forward."""
BUSY_RETRY_MS: Final = 1_000
BATCH_MESSAGES_MAX: Final = 256
"""Limit on messages put into the wheel, or delivered, before other tasks may run."""


class Timers:
    """Delivers the scheduled messages of one store. Started once, stopped once.

    Attributes:
        counts: counts of waiting and processed messages.
        storage: opens the files, and makes them durable.
        skips_due: returns whether a due message need not be delivered; None if all are.
        needless: messages of which that is known before they are due.
        handover: leaves out messages of another broker of the name.
    """

    def __init__(
        self,
        context: BrokerContext,
        storage: TimerStorage,
        counts: TimerCounts,
        destination: Destination,
    ) -> None:
        """Deliver from `store` to `destination`."""
        self._reader = context.store.reader
        self._delivery_queue = destination.delivery_queue
        self._puts = destination.puts
        self._config = context.live_config
        self.storage = storage
        self.counts = counts
        self._offload = context.offload
        self._clock = context.clock
        self._wake = asyncio.Event()
        self._slots = LoadedSlots(context, self._wake.set)
        self._intake = TimerIntake(
            context, counts, self._slots.enqueue, self._slots.enqueue_all, storage.window_ms
        )
        self.needless = NeedlessRecords()
        self._pace = IntakePace(self._wake.set)
        self._delivered: Counter[DeliveryKey] = Counter()
        self._delivered_until_ms = 0
        self._recover_until = self._in_flight = 0
        self._paused_until_ms = 0
        self._set_aside_rate = LogRate()
        self._skip_rate = LogRate()
        self._level = TimerLevel()
        self.skips_due: Callable[[TimerRecord], bool] | None = None
        self.handover = TimerHandover()
        self._stopped_at: TimerProgress | None = None
        self._files: TimerFiles | None = None
        self._main: asyncio.Task[None] | None = None
        self._is_stopping = self._has_refused_at_stop = False
        storage.scan_from = self._scan_from

    # Start and stop

    async def start(self) -> None:
        """Recover the files and begin to deliver; messages that became due meanwhile come first.

        Raises:
            StoreConfigError: the timer log's files do not fit together.
            OSError: a file cannot be read or written.
        """
        if self._config.current.timer.timer_wheel_enable:
            files = await self.storage.open()
            self._begin(files)
            self._main = asyncio.get_running_loop().create_task(self._run(files), name="timers")

    def start_later(self, before_delivery: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin as `start`, in the background: a new master serves before it has its timers.

        `before_delivery` is called when the files are open. A slave has none, or old ones, so that
        it may take long until they are.
        """
        if self._config.current.timer.timer_wheel_enable:
            run = self._open_and_run(before_delivery)
            self._main = asyncio.get_running_loop().create_task(run, name="timers")

    async def _open_and_run(self, before_delivery: Callable[[], Awaitable[None]] | None) -> None:
        files = await self.storage.open_until_stopped(before_delivery)
        if files is not None:
            self._begin(files)
            await self._run(files)

    def _begin(self, files: TimerFiles) -> None:
        """Take the open files."""
        self._delivered = Counter(self.storage.delivered)
        # The last run's store times are ahead of the present time if its clock was. If that was set
        # back, the current slot has deliveries that were due, and stored, before the slot's time.
        self._delivered_until_ms = max(
            self._clock.now_ms(), self.storage.delivered_until_ms, files.read_at_ms
        )
        self._slots.recall_all(self.storage.recalled)
        self._files = self._intake.files = files
        if self.handover.is_acting:
            files.note_acted()
        self._intake.clamp()
        self._recover_until = self._intake.end

    async def stop(self) -> None:
        """Begin no more deliveries, and return when those in progress have ended."""
        self._is_stopping = True
        self.storage.is_stopping.set()
        self._pace.stop()
        if self._main is None:
            return
        self._wake.set()
        await asyncio.wait({self._main})
        if self._files is None:
            return
        self._slots.end()
        while self._in_flight:
            self._wake.clear()
            await self._wake.wait()
        self._advance(self._files, self._clock.now_ms())
        self._stopped_at = self.progress()
        if not self._has_refused_at_stop:
            self._move_undelivered(self._files)

    def abandon(self) -> None:
        """Stop at once, like a killed process."""
        self._is_stopping = True
        self._pace.stop()
        self._slots.end()
        if self._main is not None:
            self._main.cancel()

    def on_arrivals(self) -> None:
        """Wake the intake if it is behind; called when messages became visible."""
        if self._intake.is_behind:
            self._pace.arrived()

    def on_own_stored(self, topic: str, messages: Iterable[FedMessage]) -> None:
        """Note visible messages for a topic that this broker has stored; see `TimerIntake.feed`."""
        self._intake.feed(topic, messages)

    def progress(self) -> TimerProgress:
        """Return what was delivered; that of the stop after it."""
        files = self._files
        if self._stopped_at is not None or files is None:
            return self._stopped_at or TimerProgress(0, 0)
        until_ms = min(self._slots.first_undelivered_ms(files), self._clock.now_ms())
        return self.handover.progress(until_ms, files.queue_offset)

    # Recalls and readings

    def recall(self, key: RecallKey, at_ms: int) -> None:
        """Stop the delivery of a message, with immediate effect, before the recall is stored.

        Args:
            key: topic and unique id.
            at_ms: a time within its slot's second.
        """
        self._slots.recall(key, at_ms)

    def undo_recall(self, key: RecallKey) -> None:
        """Undo a recall that could not be stored."""
        self._slots.undo_recall(key)

    @property
    def waiting(self) -> int:
        """Number of waiting messages, from the slots of the wheel."""
        return self.storage.waiting

    @property
    def intake_lag(self) -> int:
        """Number of messages of the timer topic that are not in the wheel yet."""
        return self._intake.lag

    @property
    def delivery_lag_ms(self) -> int:
        """Time since which the first undelivered message has been due, in ms."""
        dues = [due_of(slot.heap[0]) for slot in self._slots.by_second.values() if slot.heap]
        return max(0, self._clock.now_ms() - min(dues)) if dues else 0

    @property
    def has_recovered(self) -> bool:
        """Whether all messages from before the start are in the wheel; also True if it is off."""
        files = self._files
        if files is None:
            return not self._config.current.timer.timer_wheel_enable
        return files.queue_offset >= self._recover_until

    @property
    def level_ms(self) -> int:
        """The time up to which all due messages are delivered, epoch milliseconds.

        A message that was accepted before that time, and was due by then, is visible in its
        destination queue, or was recalled. 0 before the recovery has ended, or if the timer is off.
        """
        files = self._files
        if files is None or not self.has_recovered:
            return 0
        level = self._level
        intake, now_ms = self._intake, self._clock.now_ms()
        for _ in range(2):  # the second round confirms a mark that is reached already
            level.advance(files.queue_offset, self._slots.first_undelivered_ms(files))
            level.mark(now_ms, intake.end)
        return level.at_ms

    def placement(self, random: Random) -> TimerPlacement:
        """Return the object that places scheduled messages."""
        return TimerPlacement(self._config, self.storage.waiting_at, random, self._pace.placed)

    # Main loop

    async def _run(self, files: TimerFiles) -> None:
        is_failing = False
        while not self._is_stopping:
            try:
                wait_ms = await self._step(files)
                is_failing = False
            except Exception:  # a failure must not stop delivery for good
                if not is_failing:
                    log.exception("timers.failed queue_offset=%d", files.queue_offset)
                is_failing, wait_ms = True, BUSY_RETRY_MS
            await wait_woken(self._wake, wait_ms)

    async def _step(self, files: TimerFiles) -> int | None:
        """Do all work that is due; return the time to the next check in ms, None for none."""
        self._pace.begin()
        try:
            await self._intake.enqueue(BATCH_MESSAGES_MAX)
        except OSError as error:  # with a full disk, messages in memory are delivered nevertheless
            self._intake.failed(error)
        if files.queue_offset < self._recover_until and not self._intake.is_failing:
            return 0  # recalls must be known before the first delivery
        now_ms = self._clock.now_ms()
        self._advance(files, now_ms)
        self._slots.load(files, now_ms)
        await self._deliver(now_ms)
        lag = 0 if self._intake.is_failing else self._intake.lag
        intake_wait_ms = 0 if lag >= BATCH_MESSAGES_MAX else self._pace.wait_ms()
        if lag and not intake_wait_ms:
            return 0
        wait_ms = self._wait_ms(files, self._clock.now_ms())
        if not lag:
            return wait_ms
        return intake_wait_ms if wait_ms is None else min(wait_ms, intake_wait_ms)

    def _wait_ms(self, files: TimerFiles, now_ms: int) -> int | None:
        """Return the time to the next work in ms; None if no message waits."""
        slots = self._slots.by_second
        waits = [CHECK_INTERVAL_MS] if slots or files.wheel.next_second is not None else []
        if self._intake.is_failing:
            waits.append(BUSY_RETRY_MS)
        is_full = self._in_flight >= self._config.current.timer.timer_in_flight_max
        pause_ms = self._paused_until_ms - steady_ms()
        for slot in slots.values():
            if slot.heap and not is_full:
                waits.append(max(due_of(slot.heap[0]) - now_ms, pause_ms))
            elif slot.is_done and slot.second * PRECISION_MS == files.read_at_ms:
                waits.append((slot.second + 1) * PRECISION_MS - now_ms)
        load_at_ms = self._slots.next_load_ms(files)
        if load_at_ms is not None:
            waits.append(load_at_ms - now_ms)
        return max(0, min(waits)) if waits else None

    # Slots

    def _advance(self, files: TimerFiles, now_ms: int) -> None:
        """Complete the slots whose time is over and whose messages are delivered."""
        slots = self._slots.by_second
        while now_ms >= files.read_at_ms + PRECISION_MS:
            second = files.read_at_ms // PRECISION_MS
            slot = slots.get(second)
            following = files.wheel.next_second
            if slot is not None:
                if not slot.is_done:
                    return
                del slots[second]
                files.mark_done(second)
            elif following is not None and following <= second:
                return  # the slot has not been loaded
            else:
                near = [now_ms // PRECISION_MS, *slots]
                ahead = min(near if following is None else [*near, following])
                files.skip_to(max(ahead, second + 1) * PRECISION_MS)
        self._slots.drop_recalls(files.read_at_ms // PRECISION_MS)
        self.needless.drop_before(files.read_at_ms // PRECISION_MS)
        if self._delivered and files.read_at_ms > self._delivered_until_ms:
            # Deliveries from before a kill are forgotten, except rolls of later messages, which may
            # wait in a slot that does not follow from their records.
            left, until_ms = rolls_still_waiting(self._delivered, files.read_at_ms)
            is_exact = files.read_at_ms >= files.exact_from_ms
            self._delivered = Counter() if is_exact else left
            self._delivered_until_ms = min(until_ms, files.exact_from_ms)

    # Delivery

    async def _deliver(self, now_ms: int) -> None:
        """Store the messages that are due in their destination queues."""
        if steady_ms() < self._paused_until_ms:
            return
        room = self._config.current.timer.timer_in_flight_max - self._in_flight
        count = min(room, BATCH_MESSAGES_MAX)
        due, dropped = self._slots.pop_due(now_ms, count, self.needless)
        if dropped:
            self.counts.dropped(self.needless.topic, dropped)
        if len(due) == count > 0 or dropped == DROPPED_MAX:
            self._wake.set()  # more messages may be due
        cold: list[tuple[NearSlot, int]] = []
        for at, (near, number) in enumerate(due):
            entry = unpack_entry(number)
            record = self._reader.record_resident(entry.physical_offset, entry.size)
            if record is None:
                cold.append((near, number))
            else:
                self._store_due(near, number, record, entry, now_ms)
            if steady_ms() < self._paused_until_ms:  # refused: later messages must not overtake it
                self._slots.push_back(due[at + 1 :])
                break
        if cold:
            await self._deliver_cold(cold, now_ms)

    async def _deliver_cold(self, cold: Sequence[tuple[NearSlot, int]], now_ms: int) -> None:
        """Deliver messages whose records must be read from disk."""
        offsets = [unpack_entry(number).physical_offset for _, number in cold]
        try:
            records = await self._offload(list, map(self._reader.read_record, offsets))
        except OSError:
            self._slots.push_back(cold)
            raise
        for (near, number), record in zip(cold, records, strict=True):
            self._store_due(near, number, record, unpack_entry(number), now_ms)

    def _store_due(
        self, near: NearSlot, number: int, record: bytes | None, entry: DueEntry, now_ms: int
    ) -> None:
        """Store one message in its destination queue, unless recalled or delivered before."""
        try:
            timer = read_timer_record(record or b"")
            written_at_ms = timer.header.store_at_ms // PRECISION_MS * PRECISION_MS
            if not entry.is_roll:
                timer = self._with_delivery_queue(timer)
            draft, key = due_timer_draft(timer, now_ms, written_at_ms, is_roll=entry.is_roll)
        except MalformedMessageError as error:
            self._settle(near, number)
            self._log_skipped(str(error))
            return
        is_final = not entry.is_roll and not timer.is_delete
        # What was delivered before a kill is not decided again: `skips_due` would leave out the
        # acks of a checkpoint whose copy is in the revive topic.
        if (
            (is_final and self._slots.is_recalled(timer.key))
            or self._was_delivered(key)
            or self._was_decided_otherwise(timer, is_roll=entry.is_roll)
            or (is_final and self.skips_due is not None and self.skips_due(timer))
            or self.handover.leaves_out(timer, key)
        ):
            self.counts.dequeued(timer.counted_topic)
            self._settle(near, number)
            return
        if entry.is_roll and self.handover.waits_on(timer):
            if self._intake.wait_on(timer, now_ms):
                self._settle(near, number)
            else:
                self._try_later(near, number, FAILED_RETRY_MS)
            return
        if near.first_put is None:
            near.first_put = self._reader.written_position
        self._in_flight += 1

        def done(result: PutResult) -> None:
            if result.status is PutStatus.TOPIC_REFUSED:
                self._log_set_aside(result.reason)
                waiting = set_aside(draft, timer.header, self._config.current.delay_levels_ms)
                self._puts.put([waiting], now_ms, done, answers_late=False)
            else:
                if result.is_settled and self._intake.is_rolled(timer):
                    self.handover.note_sent(timer, key)
                self._put_done(near, number, timer.counted_topic, result)

        self._puts.put([draft], now_ms, done, answers_late=False)

    def _log_set_aside(self, reason: str) -> None:
        suppressed = self._set_aside_rate.take(steady_ms() / 1000)
        if suppressed is not None:
            log.warning("timer.set_aside suppressed=%d reason=%s", suppressed, reason)

    def _with_delivery_queue(self, timer: TimerRecord) -> TimerRecord:
        """Return the message with the queue that accepts it at present.

        Raises:
            MalformedMessageError: its topic was deleted, or is reserved for the broker. The message
                is dropped.
        """
        queue_id = self._delivery_queue(timer.topic, timer.queue_id)
        if queue_id is None:
            self.counts.dequeued(timer.counted_topic)
            raise MalformedMessageError(
                f"timer record at byte {timer.header.physical_offset} is for queue "
                f"{timer.queue_id} of topic {timer.topic[:TOPIC_LENGTH_MAX]!r}, which does not "
                "exist or is reserved for the broker"
            )
        return timer._replace(queue_id=queue_id)

    def _log_skipped(self, reason: str) -> None:
        suppressed = self._skip_rate.take(steady_ms() / 1000)
        if suppressed is not None:
            log.error("timer_record.passed_over reason=%s suppressed=%d", reason, suppressed)

    def _was_delivered(self, key: DeliveryKey) -> bool:
        """Return whether it was delivered before a kill; true once for each such delivery."""
        if not self._delivered.get(key):
            return False
        self._delivered[key] -= 1
        return True

    def _was_decided_otherwise(self, timer: TimerRecord, *, is_roll: bool) -> bool:
        """Return whether it was rolled before a kill, or delivered if it is to be rolled now."""
        if not self._delivered:
            return False  # as usual: this saves the key
        return self._was_delivered(other_delivery_key(timer, is_roll=is_roll))

    def _put_done(self, near: NearSlot, number: int, topic: str | None, result: PutResult) -> None:
        self._in_flight -= 1
        if not result.is_settled:
            # It may be in the log all the same: a deposed master did not learn of its copies. The
            # next start finds it there, if the slot stays as it is.
            self._has_refused_at_stop |= self._is_stopping
            is_busy = result.status is PutStatus.BUSY
            self._try_later(near, number, BUSY_RETRY_MS if is_busy else FAILED_RETRY_MS)
            log.warning("timer.put_refused status=%s reason=%s", result.status.name, result.reason)
        else:
            if result.status is PutStatus.MESSAGE_ILLEGAL:
                log.error("timer_record.passed_over reason=%s", result.reason)
            self.counts.delivered(topic, result)
            self._settle(near, number)
        half = self._config.current.timer.timer_in_flight_max // 2
        if self._is_stopping or self._in_flight in (0, half):
            self._wake.set()

    def _try_later(self, near: NearSlot, number: int, pause_ms: int) -> None:
        self._paused_until_ms = steady_ms() + pause_ms
        self._slots.push_back([(near, number)])

    def _settle(self, near: NearSlot, number: int) -> None:
        self._slots.settle(near, number)
        if near.is_done:
            self._wake.set()

    # Progress

    def _scan_from(self) -> int:
        """Return the log position from which deliveries of incomplete slots may begin."""
        slots = self._slots.by_second
        begun = [slot.first_put for slot in slots.values()]
        files = self._files
        if files is not None and files.read_at_ms <= self._delivered_until_ms:
            begun.append(files.scan_from)  # deliveries of the last run are still needed
        positions = [position for position in begun if position is not None]
        return min([self._reader.written_position, *positions])

    def _move_undelivered(self, files: TimerFiles) -> None:
        """Move the undelivered messages of slots with deliveries to a slot of their own.

        The files then describe exactly the undelivered messages, also for Java, which knows only
        whole slots.
        """
        slots = self._slots.by_second
        begun = [slot for slot in slots.values() if slot.first_put is not None]
        last = max((slot.second for slot in begun), default=0)
        if not begun or not self._slots.has_all(files, last):
            return  # or only the wheel has some of the messages
        left = [number for slot in slots.values() if slot.second <= last for number in slot.heap]
        try:
            for number in sorted(left):
                self._intake.move(unpack_entry(number), last + 1)
        except OSError:
            log.exception("timers.not_moved second=%d", last)
            return  # the slots are unchanged: the next start delivers their remaining messages
        for second in [one for one in slots if one <= last]:
            del slots[second]
        files.mark_done(last)
