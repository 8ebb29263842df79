"""Removes expired messages while the broker serves.

`kourou.store.retention` defines which messages are expired. `kourou.store.expiry` defines the steps
in which files are removed, and the state after a crash in each. This module decides when: each
`clean_interval_ms`, for the first time a minute after the start, so that an operator who started
the broker with a wrong setting can still stop it. File calls run off the event loop, and queues,
of which there may be 40,000, are processed in small parts.

Source: DefaultMessageStore.CleanCommitLogService and addScheduleTask, ConsumeQueueStore.
CleanConsumeQueueService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from datetime import datetime
from typing import Final, TypeVar

from kourou.broker.live_config import LiveConfig
from kourou.broker.statistics.runtime_info import disk_ratio
from kourou.broker.writing.age_clock import AgeClock
from kourou.clock import Clock
from kourou.disk import Disk
from kourou.errors import StoreReadOnlyError
from kourou.remoting.runtime import Offload
from kourou.remoting.steady_time import steady_ms
from kourou.store.expiry import HiddenFiles
from kourou.store.message_store import MessageStore
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.retention import REQUESTED_RUNS, RetentionConfig, Trigger, trigger

log = logging.getLogger(__name__)

FIRST_RUN_MS: Final = 60_000
QUEUES_PER_PART: Final = 50
"""Queues that are processed in one call off the loop: about 3 ms on a thread that shares the
interpreter lock with the loop."""
PART_PAUSE_MS: Final = 5
"""Pause between two such calls."""

T = TypeVar("T")


class Retention:
    """Removes expired messages from one store."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        disk: Disk,
        *,
        deletion_lock: asyncio.Lock,
        offload: Offload,
        clock: Clock,
        age_clock: AgeClock,
    ) -> None:
        """Create the retention of `store`.

        Args:
            live: the current retention options.
            store: the store whose files are removed.
            disk: the store's disk, whose used space is checked.
            deletion_lock: lock of `QueueDeletion`, held while queue files are removed.
            offload: runs file calls off the event loop.
            clock: the current time, for the hour in local time.
            age_clock: the clock for the ages of messages.
        """
        self._live = live
        self._store = store
        self._disk = disk
        self._deletion_lock = deletion_lock
        self._offload = offload
        self._clock = clock
        self._age_clock = age_clock
        self._first_at_ms = steady_ms() + FIRST_RUN_MS
        self._requested_runs = 0
        self._queues_begin = 0  # begin of the log when the queues were last cleaned
        self._is_warned = False
        self._run_lock = asyncio.Lock()

    def request(self) -> None:
        """Let the next 20 runs remove expired messages at any hour of the day.

        They do so even in the first minute after the start.
        """
        log.info("retention.requested runs=%d", REQUESTED_RUNS)
        self._requested_runs = REQUESTED_RUNS

    async def run(self) -> None:
        """Remove expired messages, if it is time for that.

        Raises:
            OSError: a file could not be removed; the next run tries again.
        """
        now_ms = self._clock.now_ms()
        await (
            self._age_clock.check_wall_clock()
        )  # in every run: a jump's duration counts from its detection
        is_requested = self._requested_runs > 0
        if steady_ms() < self._first_at_ms and not is_requested:
            return
        if self._store.writer.read_only_reason is not None:
            return
        config = self._live.current.store.retention
        space = await self._offload(self._disk.space)
        why = trigger(
            config, hour=_hour(now_ms), used_part=disk_ratio(space), is_requested=is_requested
        )
        async with self._run_lock:
            if why is not None:
                self._requested_runs -= is_requested
                await self._remove_segments(config, why)
            if self._store.reader.min_position > self._queues_begin:
                await self._clean_queues()

    async def clean_queues(self) -> None:
        """Remove the files of queues and index whose entries all refer to expired messages.

        A queue file that cannot be removed is kept, and the failure is logged.

        Raises:
            StoreReadOnlyError: the store is read-only; nothing is removed from a disk that failed.
            OSError: a file of the index cannot be removed; the next start finds it.
        """
        reason = self._store.writer.read_only_reason
        if reason is not None:
            raise StoreReadOnlyError(f"{self._disk.root} is read-only: {reason}")
        async with self._run_lock:
            await self._clean_queues()

    async def _remove_segments(self, config: RetentionConfig, why: Trigger) -> None:
        expiry = self._store.expiry
        now_ms = self._age_clock.now_ms()
        count = await self._offload(expiry.count_expired, config, now_ms)
        removed = 0
        try:
            for _ in range(count):
                if removed:
                    await asyncio.sleep(config.delete_pause_ms / 1000)
                if self._store.writer.read_only_reason is not None:
                    break
                await self._remove([expiry.hide_segment()])
                removed += 1
        finally:
            if removed:
                await self._sync_log()
                begin = self._store.reader.min_position
                log.info("commitlog.expired files=%d begin=%d why=%s", removed, begin, why.value)
        self._warn(config, is_full=why is Trigger.DISK and not removed)

    def _warn(self, config: RetentionConfig, *, is_full: bool) -> None:
        """Log once that the disk is too full although no segment is expired."""
        if is_full and not self._is_warned:
            log.warning(
                "retention.found_nothing path=%s used_percent_max=%d reserved_hours=%d",
                self._disk.root, config.disk_max_used_percent, config.file_reserved_hours,
            )  # fmt: skip
        self._is_warned = is_full

    async def _sync_log(self) -> None:
        try:
            await self._offload(self._store.expiry.sync_log)
        except OSError as error:
            self._store.writer.set_read_only(f"a sync failed: {error}")
            raise

    async def _clean_queues(self) -> None:
        begin = self._store.reader.min_position
        queues = self._store.expiry.queues()
        removed = 0
        for at in range(0, len(queues), QUEUES_PER_PART):
            if at:
                await asyncio.sleep(PART_PAUSE_MS / 1000)
            removed += await self._clean_some(queues[at : at + QUEUES_PER_PART])
        if self._store.index is not None:
            await _await_to_end(self._offload(self._store.index.expire, begin))
        self._queues_begin = begin
        if removed:
            log.info("consumequeue.expired files=%d queues=%d", removed, len(queues))

    async def _clean_some(self, queues: list[ConsumeQueue]) -> int:
        """Remove files of these queues, and return their number."""
        expiry = self._store.expiry
        async with self._deletion_lock:
            found = await self._offload(expiry.find_expired, queues)
            hidden = expiry.hide_files(found)
            count = sum(len(files.starts) for files in hidden)
            try:
                await self._remove(hidden)
            except OSError as error:
                log.warning("consumequeue.removal_failed error=%s", error)
        return count - sum(len(files.starts) for files in hidden)

    async def _remove(self, hidden: list[HiddenFiles]) -> None:
        try:
            await _await_to_end(self._offload(self._store.expiry.remove, hidden))
        finally:
            self._store.expiry.show_remaining(hidden)


def _hour(now_ms: int) -> int:
    """Return the hour of the day in local time."""
    return datetime.fromtimestamp(now_ms / 1000).astimezone().hour


async def _await_to_end(call: Awaitable[T]) -> T:
    """Await the call to its end, even when cancelled.

    Otherwise a store that is opened next could find files that a thread is still removing.
    """
    future = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
