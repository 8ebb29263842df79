"""Syncs of consume queue files, a few at a time, independent of the syncs of the log.

`kourou.store.state.checkpoint` describes the rounds of these syncs. Only the checkpoint waits for
them. They run on a thread of their own, so that syncs of the log do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kourou.broker.writing.flusher import Flusher
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter

_PAUSE_MS: Final = 10
"""Shortest pause between two syncs of a round. A round of 40,000 files takes 90 s."""


class QueueSyncs:
    """Runs the syncs of a round one after the other; used on the event loop."""

    def __init__(
        self,
        writer: StoreWriter,
        flusher: Flusher,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[str], None],
    ) -> None:
        """Sync the queue files; `on_failure` is called with the reason of a failure."""
        self._writer = writer
        self._flusher = flusher
        self._loop = loop
        self._on_failure = on_failure
        self._plan: SyncPlan | None = None  # of the running sync
        self._began_s = 0.0
        self._idle = asyncio.Event()  # set while no sync runs
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Sync the next files, if there are any and no sync runs or is scheduled."""
        if self._plan is not None or self._timer is not None or self._is_closed:
            return
        if self._writer.read_only_reason is not None:
            return
        self._plan = self._writer.queue_sync_plan()
        if self._plan is None:
            return
        self._idle.clear()
        self._began_s = self._loop.time()
        self._flusher.sync_queues(self._writer, self._plan, self._ended)

    async def close(self) -> None:
        """Start no more syncs, and return when none runs."""
        self._stop()
        await self._idle.wait()

    def abandon(self) -> None:
        """Stop like a killed process."""
        self._stop()
        self._plan = None
        self._idle.set()

    def _stop(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self, error: Exception | None) -> None:
        """Report the synced files to the store, and schedule the next sync after a pause.

        The pause is as long as the sync, so that half of the device's time is left for others.
        """
        plan, self._plan = self._plan, None
        self._idle.set()
        if plan is None:
            return  # abandoned in the meantime
        if error is not None:
            self._on_failure(f"a sync failed: {error}")
            return
        self._writer.synced(plan)
        if not self._is_closed:
            pause_s = max(_PAUSE_MS / 1000, self._loop.time() - self._began_s)
            self._timer = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.start()
