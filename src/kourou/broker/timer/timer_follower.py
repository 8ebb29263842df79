"""The timer's files of a slave in controller mode, kept up to date for the time when it is master.

A slave delivers nothing. It takes the progress that its master has made durable, as soon as its own
log has everything that the progress covers and the in-sync set has confirmed it:

    done     slots before the master's read time are done
    intake   messages of the timer topic before the master's queue offset get units, in the slots
             that follow from their records
    flush    the files are made durable with both, after each progress

So a slave has no message in an earlier slot than its master, and none is done too early. It may
have one in a later slot: a message that was late at the master is put into the current slot, which
is a later one here. Its delivery has a record behind its own; `_Held` keeps the position until that
slot is done. A new master opens the files as after a kill: it takes in the rest of the topic, and
finds what was delivered since in the log.

Nothing is taken from a Java master, which tells no position of its log, nor from a master whose
slots do not follow from the records (`TimerFiles.exact_from_ms`). The files of that slave are
rebuilt when it becomes master.

Source: TimerMessageStore.java, SlaveSynchronize.syncTimerCheckPoint, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.periodic_tasks import wait_woken
from kourou.broker.timer.timer_counts import TimerCounts
from kourou.broker.timer.timer_intake import TimerIntake
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.errors import ClosedError
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.timer_progress import ReplicaProgress
from kourou.remoting.steady_time import steady_ms
from kourou.store.timer.layouts import PRECISION_MS
from kourou.store.timer.timer_files import TimerFiles

log = logging.getLogger(__name__)

BATCH_MESSAGES_MAX: Final = 64
"""Limit on messages put into the wheel before other tasks may run."""
FLUSH_AFTER_MS: Final = 5_000
"""How often the files are flushed while the slave is far behind."""
COVER_CHECK_MS: Final = 50
"""How soon it is checked again whether the slave's log has what a progress covers."""
RETRY_MS: Final = 1_000


class TimerFollower:
    """Follows the timer of one master. Started once, stopped once."""

    def __init__(
        self,
        context: BrokerContext,
        storage: TimerStorage,
        counts: TimerCounts,
        is_copied: Callable[[int], bool],
    ) -> None:
        """Follow nothing yet.

        Args:
            context: the broker's state and services.
            storage: opens and flushes the files.
            counts: count the messages that are put into the wheel.
            is_copied: returns whether the slave has its master's log up to a position for good.
        """
        self._reader = context.store.reader
        self._is_enabled = context.config.timer.timer_wheel_enable
        self._storage = storage
        self._is_copied = is_copied
        self._intake = TimerIntake(
            context,
            counts,
            lambda *_, **__: None,
            lambda *_, **__: None,
            self._window_ms,
            is_following=True,
        )
        self._offered: ReplicaProgress | None = None
        self._progress: ReplicaProgress | None = None
        self._held = _Held()
        self._files: TimerFiles | None = None
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        storage.scan_from, storage.covered_at = self._scan_from, self._covered_at

    def start(self) -> None:
        """Begin to follow, in a task."""
        if self._is_enabled:
            self._task = asyncio.create_task(self._run(), name="follow timers")

    def offer(self, progress: ReplicaProgress) -> None:
        """Note the progress of the master, which is followed when the log has what it covers."""
        if progress != self._progress:
            self._offered = progress
            self._wake.set()

    async def stop(self) -> None:
        """Return when the files are not used any more; they are as flushed last."""
        self._is_stopping = True
        self._storage.is_stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Stop at once, like a killed process."""
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        is_failing = False
        while not self._is_stopping:
            wait_ms = None if self._offered is None else COVER_CHECK_MS
            try:
                if await self._follow():
                    is_failing, wait_ms = False, None
            except ClosedError:
                return
            except Exception:  # a failure must not end this for good
                if not is_failing:
                    log.exception("timers.not_followed again_in_ms=%d", RETRY_MS)
                is_failing, wait_ms = True, RETRY_MS
            await wait_woken(self._wake, wait_ms)

    async def _follow(self) -> bool:
        """Take the offered progress, if there is one and the log has what it covers."""
        progress = self._offered
        if progress is None or not self._is_copied(progress.covered_at):
            return False
        files = await self._open(progress) if self._files is None else self._files
        if progress.queue_offset >= files.queue_offset:
            self._progress = progress
            self._take(files, progress)
            await self._enqueue(files, progress.queue_offset)
            await self._storage.flush()
        if self._offered is progress:
            self._offered = None
        return self._offered is None

    async def _open(self, progress: ReplicaProgress) -> TimerFiles:
        files = await self._storage.open_following(progress)
        if not files.check.read_at_ms:  # new files: the time is the master's
            files.read_at_ms = progress.read_at_ms
        self._held.hold(files.read_at_ms, files.scan_from)
        self._files = self._intake.files = files
        self._intake.clamp()
        log.info(
            "timers.following read_at_ms=%d queue_offset=%d waiting=%d",
            files.read_at_ms, files.queue_offset, files.wheel.count,
        )  # fmt: skip
        return files

    def _take(self, files: TimerFiles, progress: ReplicaProgress) -> None:
        """Take the time of the master, unless a master before was ahead of that."""
        if progress.read_at_ms > files.read_at_ms:
            files.mark_done(progress.read_at_ms // PRECISION_MS - 1)
            self._held.drop_before(files.read_at_ms)
        if progress.queue_offset > files.queue_offset:
            first = self._reader.entry(TIMER_TOPIC, 0, files.queue_offset)
            self._held.hold(files.read_at_ms, 0 if first is None else first.physical_offset)
        files.is_changed = True

    async def _enqueue(self, files: TimerFiles, end: int) -> None:
        """Put the messages before a queue offset into the wheel."""
        flushed_at_ms = steady_ms()
        while files.queue_offset < end and not self._is_stopping:
            await self._intake.enqueue(min(BATCH_MESSAGES_MAX, end - files.queue_offset))
            await asyncio.sleep(0)
            if steady_ms() - flushed_at_ms > FLUSH_AFTER_MS:
                await self._storage.flush()
                flushed_at_ms = steady_ms()

    def _window_ms(self) -> int:
        assert self._progress is not None, "messages are taken in for a progress"
        return self._progress.window_ms

    def _scan_from(self) -> int:
        return self._held.lowest(0 if self._progress is None else self._progress.scan_from)

    def _covered_at(self) -> int:
        before = 0 if self._files is None else self._files.check.covered_at or 0
        return max(before, 0 if self._progress is None else self._progress.covered_at)


class _Held:
    """The log position before all deliveries of messages that may be done at the master.

    These are in the slave's current slot.
    """

    def __init__(self) -> None:
        self._read_at_ms = 0
        self._position: int | None = None

    def hold(self, read_at_ms: int, position: int | None) -> None:
        """Keep a position until the slot that begins at a time is done."""
        known = [one for one in (self._position, position) if one is not None]
        self._read_at_ms, self._position = read_at_ms, min(known, default=None)

    def drop_before(self, read_at_ms: int) -> None:
        """Drop the position if its slot is done."""
        if read_at_ms > self._read_at_ms:
            self._position = None

    def lowest(self, position: int) -> int:
        """Return the lower one of a position and the held one."""
        return position if self._position is None else min(position, self._position)
