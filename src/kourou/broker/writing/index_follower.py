"""Keeps the key index up to date with the log, in slices of about 1 ms on the event loop.

Calls that may wait for the device run off the loop. While the disk is full, indexing is retried;
any other failure to write the index makes the store read-only, as in Java's broker.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kourou.clock import Clock
from kourou.remoting.runtime import Offload
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import IndexStep, MessageStore

log = logging.getLogger(__name__)

GATHER_MS: Final = 100
"""How long messages are gathered before they are indexed together. Queries also search the part of
the log that is not indexed yet, so that the delay has no effect on them."""
PAUSE_MS: Final = 1
"""Pause between two slices, so that catching up takes at most half of the loop's time."""
SLICE_MS: Final = 1
"""Length of a slice, give or take a step. It is limited by time and not by messages, because a
message that costs 2 us on a quiet machine costs ten times that on a busy one, or where all messages
have different forms."""
LAG_MAX_BYTES: Final = 32 * 1024 * 1024
"""Queries search at most this much of the log beyond the index. The nearer the lag of the index
comes to it, the longer a slice may be: by a growing part of the time since the previous slice, up
to all of it. Otherwise the index would fall behind for good on a busy loop, which starts each slice
late. The same applies the nearer the feed of the index is to being full, since records that do not
fit into the feed must be read from the log."""
SLICE_MAX_MS: Final = 8
"""Longest slice. It is reached only if turns of the loop take as long themselves."""
STEP_MS: Final = 0.8
"""Longest desired step. After a longer one the number of records is halved, which makes each record
a fifth more expensive. A step is not started if most of it would lie after the end of the slice."""
STEP_RECORDS_MIN: Final = 16
STEP_RECORDS_MAX: Final = 512
UNSYNCED_PAUSE_MS: Final = 250
"""How often the log is checked for newly synced records while the index lags, without `notify`."""
RETRY_MS: Final = 5_000
SAVE_INTERVAL_MS: Final = 60_000
"""How often the index is made durable. After a crash the log is indexed again from there."""

_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class IndexFollower:
    """The task that indexes a store's log.

    Args:
        store: holds the index and the log.
        offload: runs calls that may wait for the device off the loop.
        clock: the current time, for `MessageStore.index_upkeep`.
        time_s: a steady clock, which measures slices and steps.
    """

    def __init__(
        self,
        store: MessageStore,
        offload: Offload,
        clock: Clock,
        *,
        time_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._time_s = time_s
        self.step_records = STEP_RECORDS_MAX // 4
        self._ended_s = 0.0  # end of the previous slice, or of the wait for work
        self._offload = offload
        self._clock = clock
        self._saved_at_ms = steady_ms()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._is_failing = False

    def start(self) -> None:
        """Start the task, if the store has an index."""
        if self._store.index is not None:
            self._wake.set()
            self._task = asyncio.create_task(self._run(), name="follow the log with the index")

    def notify(self) -> None:
        """Announce new messages."""
        self._wake.set()

    async def stop(self) -> None:
        """End the task, and return when it no longer uses the index."""
        self._stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Stop like a killed process."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._wait()
            try:
                await self._follow()
            except OSError as error:
                self._on_write_error(error)
            except Exception:  # retry: if the task ended, later messages would never be indexed
                if not self._is_failing:
                    log.exception("index.following_failed")
                self._is_failing = True
            else:
                self._is_failing = False

    async def _wait(self) -> None:
        """Return when there is, or may be, work."""
        if self._is_failing:
            await _event_or_time(self._stopping, RETRY_MS)
            return
        await _event_or_time(self._wake, self._check_delay_ms())
        self._wake.clear()
        await _event_or_time(self._stopping, GATHER_MS)

    def _check_delay_ms(self) -> int | None:
        """Return after how long to check for work without `notify`; None for never."""
        index = self._store.index
        if index is None or self._store.writer.read_only_reason is not None:
            return None
        if self._store.index_lag_bytes:
            return UNSYNCED_PAUSE_MS
        return max(1, self._save_due_ms()) if index.has_unsaved else None

    def _save_due_ms(self) -> int:
        return self._saved_at_ms + SAVE_INTERVAL_MS - steady_ms()

    async def _follow(self) -> None:
        """Index the synced part of the log, and save the index when that is due."""
        store = self._store
        self._ended_s = self._time_s()
        while not self._stopping.is_set() and (step := self.run_slice()) is not IndexStep.IDLE:
            if step is IndexStep.BLOCKED:
                await self._offload(store.index_upkeep, self._clock.now_ms())
            else:
                await asyncio.sleep(PAUSE_MS / 1000)
            await self._save_if_due()
        await self._save_if_due()

    def run_slice(self) -> IndexStep:
        """Run steps until the slice's time is over, and adapt their number of records."""
        time_s = self._time_s
        now_s = time_s()
        behind = max(self._store.index_lag_bytes / LAG_MAX_BYTES, self._store.index_feed_fullness)
        share = min(behind, 1.0)
        allowed_s = SLICE_MS / 1000 + share * (now_s - self._ended_s)
        end_s = now_s + min(allowed_s, SLICE_MAX_MS / 1000)
        while True:
            began_s = now_s
            step = self._store.index_step(self.step_records)
            now_s = time_s()
            took_ms = (now_s - began_s) * 1000
            if took_ms > STEP_MS:
                self.step_records = max(self.step_records // 2, STEP_RECORDS_MIN)
            elif took_ms < STEP_MS / 3:
                self.step_records = min(self.step_records * 2, STEP_RECORDS_MAX)
            if step is not IndexStep.MORE or now_s + (now_s - began_s) / 2 >= end_s:
                self._ended_s = now_s
                return step

    async def _save_if_due(self) -> None:
        index = self._store.index
        is_due = index is not None and index.has_unsaved and self._save_due_ms() <= 0
        if is_due and self._store.writer.read_only_reason is None:
            self._saved_at_ms = steady_ms()
            await self._offload(self._store.index_save)

    def _on_write_error(self, error: OSError) -> None:
        if error.errno not in _OUT_OF_SPACE:
            self._store.writer.set_read_only(
                f"the key index could not be written: {error}; if the disk is in order, remove the "
                "directory `index`: it is built again"
            )
        elif not self._is_failing:
            log.error("index.write_failed error=%s", error)
        self._is_failing = True


async def _event_or_time(event: asyncio.Event, limit_ms: int | None) -> None:
    """Return when the event is set or the time has passed; None waits without limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if limit_ms is None else limit_ms / 1000):
            await event.wait()
