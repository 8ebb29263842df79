"""Keeps the key index close behind the log: in slices of about a millisecond, between requests.

What may wait for the device leaves the loop. A full disk makes the index wait for room; any other
failure to write it makes the store read-only, as Java's broker is then.
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
"""How long messages are gathered before they are indexed together. Queries look behind the index
too, so that nobody sees this."""
PAUSE_MS: Final = 1
"""Between two slices, so that a long way to follow takes half of the loop's time at most."""
SLICE_MS: Final = 1
"""When a slice ends, give or take a step; by the time, since a message that costs 2 us on a quiet
machine costs ten times that on a busy one, or where messages are all of different forms."""
BEHIND_BYTES: Final = 32 * 1024 * 1024
"""Queries look through so much of the log behind the index and no more. The nearer the index comes
to it, the more a slice gets besides of the time since the one before, up to as much as that was: a
loop with much to do comes to each slice late, and the index would fall behind for good. The same
for the nearer its feed is to being full: what does not fit there has to be read from the log."""
SLICE_MAX_MS: Final = 8
"""And no more than this, which only turns of the loop leave that take as long themselves."""
STEP_MS: Final = 0.8
"""What a step should take at most: the next one is of half as many records otherwise. Half as many
cost a fifth more each. No step is begun most of which would be behind the end of the slice."""
STEP_RECORDS_MIN: Final = 16
STEP_RECORDS_MAX: Final = 512
UNSYNCED_PAUSE_MS: Final = 250
"""How often to look whether more of the log is synced, where nobody waits for that."""
RETRY_MS: Final = 5_000
SAVE_INTERVAL_MS: Final = 60_000
"""How often the index is made durable: a crash costs following the log from there again."""

_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class IndexFollowing:
    """The task that lets a store's index follow its log.

    Args:
        store: whose index it is.
        offload: runs what may wait for the device.
        clock: says when to save.
        time_s: a steady clock that says how long a slice has taken.
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
        self._step_records = STEP_RECORDS_MAX // 4
        self._ended_s = 0.0  # the slice before, or the wait for something to do
        self._offload = offload
        self._clock = clock
        self._saved_at_ms = steady_ms()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._is_failing = False

    def start(self) -> None:
        """Begin, where an index is kept."""
        if self._store.index is not None:
            self._wake.set()
            self._task = asyncio.create_task(self._run(), name="follow the log with the index")

    def notify(self) -> None:
        """There are new messages."""
        self._wake.set()

    async def stop(self) -> None:
        """End, and return when nothing works on the index any more."""
        self._stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Stop as a killed process stops."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._wait()
            try:
                await self._follow()
            except OSError as error:
                self._failed(error)
            except Exception:  # it is tried again: what is missing would be missing for good
                if not self._is_failing:
                    log.exception("index.following_failed")
                self._is_failing = True
            else:
                self._is_failing = False

    async def _wait(self) -> None:
        """Return when there is, or may be, something to do."""
        if self._is_failing:
            await _event_or_time(self._stopping, RETRY_MS)
            return
        await _event_or_time(self._wake, self._limit_ms())
        self._wake.clear()
        await _event_or_time(self._stopping, GATHER_MS)

    def _limit_ms(self) -> int | None:
        """Return when to look even if nobody says that there are new messages; None for never."""
        index = self._store.index
        if index is None or self._store.read_only_reason is not None:
            return None
        if self._store.index_lag_bytes:
            return UNSYNCED_PAUSE_MS
        return max(1, self._save_due_ms()) if index.has_unsaved else None

    def _save_due_ms(self) -> int:
        return self._saved_at_ms + SAVE_INTERVAL_MS - steady_ms()

    async def _follow(self) -> None:
        """Index what is synced, and save the index when it is time."""
        store = self._store
        self._ended_s = self._time_s()
        while not self._stopping.is_set() and (left := self._slice()) is not IndexStep.IDLE:
            if left is IndexStep.BLOCKED:
                await self._offload(store.index_upkeep, self._clock.now_ms())
            else:
                await asyncio.sleep(PAUSE_MS / 1000)
            await self._save_if_due()
        await self._save_if_due()

    def _slice(self) -> IndexStep:
        """Take steps until the time is over, of as many records as keep each short."""
        time_s = self._time_s
        now_s = time_s()
        behind = max(self._store.index_lag_bytes / BEHIND_BYTES, self._store.index_feed_fullness)
        share = min(behind, 1.0)
        allowed_s = SLICE_MS / 1000 + share * (now_s - self._ended_s)
        end_s = now_s + min(allowed_s, SLICE_MAX_MS / 1000)
        while True:
            began_s = now_s
            left = self._store.index_step(self._step_records)
            now_s = time_s()
            took_ms = (now_s - began_s) * 1000
            if took_ms > STEP_MS:
                self._step_records = max(self._step_records // 2, STEP_RECORDS_MIN)
            elif took_ms < STEP_MS / 3:
                self._step_records = min(self._step_records * 2, STEP_RECORDS_MAX)
            if left is not IndexStep.MORE or now_s + (now_s - began_s) / 2 >= end_s:
                self._ended_s = now_s
                return left

    async def _save_if_due(self) -> None:
        index = self._store.index
        is_due = index is not None and index.has_unsaved and self._save_due_ms() <= 0
        if is_due and self._store.read_only_reason is None:
            self._saved_at_ms = steady_ms()
            await self._offload(self._store.index_save)

    def _failed(self, error: OSError) -> None:
        if error.errno not in _OUT_OF_SPACE:
            self._store.set_read_only(
                f"the key index could not be kept: {error}; where the disk is well, remove the "
                "directory `index`: it is made again"
            )
        elif not self._is_failing:
            log.error("index.write_failed error=%s", error)
        self._is_failing = True


async def _event_or_time(event: asyncio.Event, limit_ms: int | None) -> None:
    """Return when the event is set, or after the time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if limit_ms is None else limit_ms / 1000):
            await event.wait()
