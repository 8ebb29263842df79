"""Keeps the key index close behind the log: in slices of about a millisecond, between requests.

What may wait for the device leaves the loop. A full disk makes the index wait for room; any other
failure to write it makes the store read-only, as Java's broker is then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress
from typing import Final

from kourou.clock import Clock
from kourou.remoting.runtime import Offload
from kourou.store.message_store import IndexStep, MessageStore

log = logging.getLogger(__name__)

GATHER_MS: Final = 100
"""How long messages are gathered before they are indexed together. Queries look behind the index
too, so that nobody sees this."""
PAUSE_MS: Final = 1
"""Between two slices, so that a long way to follow takes half of the loop's time at most."""
UNSYNCED_PAUSE_MS: Final = 250
"""How often to look whether more of the log is synced, where nobody waits for that."""
RETRY_MS: Final = 5_000
SAVE_INTERVAL_MS: Final = 60_000
"""How often the index is made durable: a crash costs following the log from there again."""

_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class IndexFollowing:
    """The task that lets a store's index follow its log."""

    def __init__(self, store: MessageStore, offload: Offload, clock: Clock) -> None:
        self._store = store
        self._offload = offload
        self._clock = clock
        self._saved_at_ms = clock.now_ms()
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
        return self._saved_at_ms + SAVE_INTERVAL_MS - self._clock.now_ms()

    async def _follow(self) -> None:
        """Index what is synced, and save the index when it is time."""
        store = self._store
        while not self._stopping.is_set() and (left := store.index_step()) is not IndexStep.IDLE:
            if left is IndexStep.BLOCKED:
                await self._offload(store.index_upkeep, self._clock.now_ms())
            else:
                await asyncio.sleep(PAUSE_MS / 1000)
            await self._save_if_due()
        await self._save_if_due()

    async def _save_if_due(self) -> None:
        index = self._store.index
        is_due = index is not None and index.has_unsaved and self._save_due_ms() <= 0
        if is_due and self._store.read_only_reason is None:
            self._saved_at_ms = self._clock.now_ms()
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
