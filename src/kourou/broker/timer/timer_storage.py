"""Recovery and periodic flush of the timer's files."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.timer.near_slots import waiting_positions
from kourou.broker.timer.timer_counts import TimerCounts, count_by_topic
from kourou.errors import (
    ClosedError,
    CorruptRecordError,
    MalformedMessageError,
    StoreConfigError,
)
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.brokers import TimerCheckPoint
from kourou.protocol.data_version import DataVersion
from kourou.protocol.record.read import read_record
from kourou.protocol.timer_progress import ReplicaProgress
from kourou.store.log.property_search import position_before
from kourou.store.timer.delivered import DeliveryKey, delivered_since, delivery_key
from kourou.store.timer.layouts import KIND_DELETE, PRECISION_MS, SLOTS, TimerCheck
from kourou.store.timer.slot_choice import roll_window_ms
from kourou.store.timer.timer_files import FlushPlan, TimerFiles
from kourou.store.timer.timer_rebuild import find_waiting, rebuild_timers, remove_timer_files
from kourou.store.timer.timer_record import RecallKey, TimerRecord, read_timer_record

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""Delay before another attempt to open the files in the background."""
SAVE_COUNTS_EVERY: Final = 10
"""Number of flushes between two saves of the counts."""
COVER_CHECKS: Final = 20
COVER_CHECK_MS: Final = 10
"""How often, and at which interval, a flush checks whether the log is durable that far."""
CLEAN_EVERY: Final = 30
"""Number of flushes between two removals of timer log files whose messages have expired."""


class TimerStorage:
    """Opens and flushes the timer's files of one store.

    Attributes:
        scan_from: returns the log position from which deliveries may be missing in the files.
        covered_at: returns the log position of which the files depend.
        delivered: deliveries found at the start that the files do not have.
        delivered_until_ms: store time of the last of these by the clock at that time; 0 for none.
        delivered_from: log position from which they were looked up; None if there can be none.
        is_acting: whether the broker is a slave that acts for its master.
        is_stopping: set when the broker stops, so that `open` ends soon.
        recalled: recalls found at the start that were due to be rolled while the broker was down:
            in the wheel they may come after the messages that they recall.
    """

    def __init__(self, context: BrokerContext, counts: TimerCounts) -> None:
        self._disk = context.disk
        self._store = context.store
        self._is_as_left = context.is_as_left
        self._commit = context.commit
        self._config = context.live_config
        self._counts = counts
        self._offload = context.offload
        self._clock = context.clock
        self._files: TimerFiles | None = None
        self._plan: FlushPlan | None = None
        self._flushes = 0
        self._is_recount_due = False
        self.scan_from: Callable[[], int] = lambda: 0
        self.covered_at: Callable[[], int] = self._covered_at
        self.delivered: Counter[DeliveryKey] = Counter()
        self.delivered_until_ms = 0
        self.delivered_from: int | None = None
        self.recalled: list[RecallKey] = []
        self.is_acting = False
        self.is_stopping = asyncio.Event()
        # Only what was durable when the store was opened is certain to be there after a crash.
        self._end = context.store.reader.written_position

    async def open(self) -> TimerFiles:
        """Recover the files and return them; rebuild them if they are incomplete.

        The broker may serve meanwhile.

        Raises:
            ClosedError: `is_stopping` was set; the next start continues.
            StoreConfigError: the timer log's files do not fit together.
            OSError: a file cannot be read or written.
        """
        files = await self._offload(self._open)
        self.recalled = await self._offload(self._rolled_recalls, files)
        self._counts.load()
        if self._is_recount_due:
            counted = await self._offload(count_by_topic, files, self._topic_of)
            if counted is not None:
                self._counts.set_all(counted)
        self._files = files
        return files

    async def open_following(self, progress: ReplicaProgress) -> TimerFiles:
        """Open the files of a slave, whose log has what the progress of its master covers.

        They are rebuilt if they are incomplete.

        Raises:
            ClosedError, StoreConfigError, OSError: see `open`.
        """
        files = await self._offload(self._open_following, progress)
        self._counts.load()
        self._files = files
        return files

    async def open_until_stopped(
        self, before_delivery: Callable[[], Awaitable[None]] | None
    ) -> TimerFiles | None:
        """Open the files as `open`, repeatedly until that succeeds; None if the broker stops.

        Args:
            before_delivery: called when the files are open; None for nothing to do then.
        """
        is_failing = False
        while True:
            try:
                files = await self.open()
                if before_delivery is not None:
                    await before_delivery()
            except ClosedError:
                return None
            except Exception:  # messages wait meanwhile
                if not is_failing:
                    log.exception("timers.not_opened again_in_ms=%d", RETRY_MS)
                is_failing = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_MS / 1000):
                        await self.is_stopping.wait()
            else:
                return files

    def window_ms(self) -> int:
        """Return the window by which messages are rolled, see `choose_slot`."""
        config = self._config.current
        return roll_window_ms(
            config.timer.timer_roll_window_slot, config.store.retention.file_reserved_hours
        )

    def _recovered(self, topic_end: int, *, is_following: bool) -> TimerFiles | str:
        """Return the files, or why they must be rebuilt."""
        self._check_stopping()
        config, run = self._config.current, self._store.recovery.last_run
        try:
            files = TimerFiles(self._disk, config.timer.timer_log_file_bytes)
        except StoreConfigError as error:  # a failing disk left a file of another size
            return str(error)
        log_end = self._store.reader.written_position
        reason = files.rebuild_reason(topic_end, log_end, was_kourou=run.was_kourou)
        if reason is not None:
            return reason
        if files.was_acted and not self.is_acting:
            return "a slave that acted for its master has left messages to that"
        if is_following and files.check.read_at_ms and files.check.covered_at is None:
            return "their slots may differ from those of the master"
        files.recover(self._clock.now_ms(), self._queue_offset_of, was_clean=run.was_clean)
        return "files of the timer log are missing" if files.lacks_units() else files

    def _open_following(self, progress: ReplicaProgress) -> TimerFiles:
        files = self._recovered(progress.queue_offset, is_following=True)
        return self._rebuilt(files, progress) if isinstance(files, str) else files

    def _open(self) -> TimerFiles:
        files = self._recovered(self._store.reader.max_offset(TIMER_TOPIC, 0), is_following=False)
        if isinstance(files, str):
            self._is_recount_due = True
            return self._rebuilt(files)
        files.note_window(self.window_ms())
        self._is_recount_due = not self._is_as_left or files.check.scan_from is None
        segment_bytes = self._config.current.store.commitlog_segment_bytes
        scan_from = files.scan_from
        if scan_from is None and not self._is_as_left:
            since_ms = files.read_at_ms - PRECISION_MS
            scan_from = position_before(self._disk, segment_bytes, since_ms)
        if scan_from is not None and scan_from < self._end:
            self.delivered_from = scan_from
            delivered = delivered_since(self._disk, segment_bytes, scan_from, self._end)
            self.delivered, self.delivered_until_ms = delivered
        if files.scan_from is None:
            files.scan_from = scan_from
            self._save_start(files)
        log.info(
            "timers.opened read_at_ms=%d queue_offset=%d waiting=%d delivered=%d",
            files.read_at_ms, files.queue_offset, files.wheel.count, self.delivered.total(),
        )  # fmt: skip
        return files

    def _rebuilt(self, reason: str, progress: ReplicaProgress | None = None) -> TimerFiles:
        """Rebuild the files from the whole commit log; see `rebuild_timers`."""
        log.warning("timer_files.lost reason=%s", reason)
        config, store = self._config.current, self._store
        remove_timer_files(self._disk)
        return rebuild_timers(
            self._disk,
            find_waiting(
                self._disk,
                config.store.commitlog_segment_bytes,
                end=self._end if progress is None else progress.covered_at,
                progress=lambda _, __: self._check_stopping(),
            ),
            store.reader.read_record,
            self._clock.now_ms(),
            log_file_bytes=config.timer.timer_log_file_bytes,
            window_ms=self.window_ms() if progress is None else progress.window_ms,
            progress=progress,
            check=self._check_stopping,
        )

    def _check_stopping(self) -> None:
        if self.is_stopping.is_set():
            raise ClosedError("the broker stops while the timer's files are rebuilt")

    def _rolled_recalls(self, files: TimerFiles) -> list[RecallKey]:
        now_s = self._clock.now_ms() // PRECISION_MS
        keys: list[RecallKey] = []
        for second in files.wheel.next_seconds(now_s + 1, SLOTS):
            slot = files.wheel.slot(second)
            units = files.log.chain(slot.last) if slot is not None else ()
            try:
                for _, unit in units:
                    if (
                        unit.is_roll and unit.kind & KIND_DELETE
                    ):  # `is_delete` is of none that rolls
                        record = self._store.reader.read_record(unit.physical_offset)
                        keys.append(read_timer_record(record or b"").key)
            except (CorruptRecordError, MalformedMessageError) as error:  # logged again by the load
                log.debug("timer_slot.skimmed second=%d reason=%s", second, error)
        return keys

    def _save_start(self, files: TimerFiles) -> None:
        """Save the log position at which deliveries begin, before the first delivery."""
        end = self._end
        files.is_changed = True
        scan_from = end if files.scan_from is None else files.scan_from
        plan = files.plan_flush(self._clock.now_ms(), scan_from, end)
        if plan is None:
            return
        try:
            files.run_flush(plan)
        except OSError as error:  # a full disk must not prevent the start
            files.flush_failed(plan)
            log.warning("timers.not_noted error=%s", error)
        else:
            files.flush_succeeded(plan)

    def _topic_of(self, physical_offset: int) -> str | None:
        try:
            return read_timer_record(self._store.reader.read_record(physical_offset) or b"").topic
        except MalformedMessageError:
            return None

    def _queue_offset_of(self, physical_offset: int) -> int | None:
        record = self._store.reader.read_record(physical_offset)
        if record is None:
            return None
        try:
            header = read_record(record, check_crc=False)
        except MalformedMessageError:
            return None
        return header.queue_offset if header.topic == TIMER_TOPIC else None

    async def flush(self) -> None:
        """Make the timer's progress durable if it has changed since the last flush.

        Requires the commit log to be synced up to the position that the progress depends on. If it
        is not, a later call flushes the same progress.

        Raises:
            OSError: a write failed; the next call tries again, unless a sync failed.
        """
        files, store = self._files, self._store
        if files is None or store.writer.read_only_reason is not None:
            return
        if self._plan is None:
            files.log.write()
            covered_at = self.covered_at()
            self._plan = files.plan_flush(self._clock.now_ms(), self.scan_from(), covered_at)
        plan = self._plan
        if plan is None or not await self._is_covered(plan):
            return
        self._plan = None
        try:
            await self._offload(files.run_flush, plan)
        except BaseException:
            files.flush_failed(plan)
            raise
        files.flush_succeeded(plan)
        self._flushes += 1
        if self._flushes % SAVE_COUNTS_EVERY == 0:
            await self._counts.persist()
        if self._flushes % CLEAN_EVERY == 0:
            files.log.remove_before(lambda at: at < store.reader.min_position)

    def _covered_at(self) -> int:
        reader = self._store.reader
        # In sync mode only synced messages were visible.
        return reader.synced_position if self._commit.is_sync_mode else reader.written_position

    async def _is_covered(self, plan: FlushPlan) -> bool:
        """Return whether no failure can take back what a plan depends on; waits for it a little."""
        confirmed_position = self._commit.confirmed_position
        for _ in range(COVER_CHECKS):
            position = self._store.reader.synced_position
            if confirmed_position is not None:
                position = min(position, confirmed_position(position))
            if plan.covered_at <= position:
                return True
            if confirmed_position is None:
                return False
            await asyncio.sleep(COVER_CHECK_MS / 1000)
        return False

    async def close(self) -> None:
        """Make all progress durable; to be called after `Timers.stop`, with everything synced.

        Raises:
            OSError: a write failed; the next start reads the rest from topic and log.
        """
        if self._files is None:
            return
        if self._plan is not None:  # a flush that waited for the log's sync
            self._files.flush_failed(self._plan)
            self._plan = None
        if self._files.check.counter:
            self._files.is_changed = True  # the read time advances without messages too
        await self.flush()
        await self._counts.persist()

    @property
    def waiting(self) -> int:
        """Number of waiting messages, from the slots of the wheel."""
        return 0 if self._files is None else self._files.wheel.count

    def waiting_at(self, due_at_ms: int) -> int:
        """Return the number of messages that are due in the same second."""
        if self._files is None:
            return 0
        slot = self._files.wheel.slot((due_at_ms - 1) // PRECISION_MS)
        return 0 if slot is None else slot.messages

    async def waiting_records(self, topics: Iterable[str]) -> list[int]:
        """Return the log positions of messages for some topics that wait in the wheel, sorted.

        Some may be of other topics, whose names have the same hash.

        Raises:
            OSError: the timer log cannot be read.
        """
        files = self._files
        if files is None:
            return []
        slots = files.wheel.slots()
        return await self._offload(waiting_positions, files.log, slots, tuple(topics))

    def was_delivered(self, timer: TimerRecord) -> bool:
        """Return whether a message was delivered before the start, after the last flush."""
        return delivery_key(timer.topic, timer.properties) in self.delivered

    def replica_progress(self) -> ReplicaProgress | None:
        """Return the durable progress for slaves; None if their slots would differ."""
        check = TimerCheck() if self._files is None else self._files.check
        if check.covered_at is None or check.read_at_ms < check.exact_from_ms:
            return None
        return ReplicaProgress(
            check.read_at_ms,
            check.queue_offset,
            check.scan_from or 0,
            check.covered_at,
            check.window_ms,
        )

    def check_point(self) -> TimerCheckPoint:
        """Return the content of the check file."""
        if self._files is None:
            return TimerCheckPoint()
        check = self._files.check
        version = DataVersion(check.counter, check.state_version, check.changed_at_ms)
        return TimerCheckPoint(
            check.read_at_ms,
            check.log_position,
            check.queue_offset,
            check.master_queue_offset,
            version,
        )
