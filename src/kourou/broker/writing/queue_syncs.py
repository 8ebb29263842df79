"""Syncing a round's consume queue files, a few at a time, beside the syncs of the log.

What a round is tells `kourou.store.state.checkpoint`. Nothing but the checkpoint waits for these
syncs, and the log's never wait for them: they have a thread of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kourou.broker.writing.flusher import Flusher
from kourou.store.message_store import MessageStore, SyncPlan

_PAUSE_MS: Final = 10
"""The least time between two syncs of a round: one of 40,000 files takes a minute and a half."""


class QueueSyncs:
    """Lets a round go on, one sync after the other; on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[str], None],
    ) -> None:
        """Serve `store`; `on_failure` is told why no sync can be trusted any more."""
        self._store = store
        self._flusher = flusher
        self._loop = loop
        self._on_failure = on_failure
        self._plan: SyncPlan | None = None  # of the sync that runs
        self._began_s = 0.0
        self._idle = asyncio.Event()  # set when no sync runs
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Sync the next files, if some wait and no sync runs or is about to."""
        if self._plan is not None or self._timer is not None or self._is_closed:
            return
        if self._store.read_only_reason is not None:
            return
        self._plan = self._store.queue_sync_plan()
        if self._plan is None:
            return
        self._idle.clear()
        self._began_s = self._loop.time()
        self._flusher.sync_queues(self._store, self._plan, self._ended)

    async def close(self) -> None:
        """Begin no more syncs, and return when none runs."""
        self._stop()
        await self._idle.wait()

    def abandon(self) -> None:
        """Stop as a killed process stops."""
        self._stop()
        self._plan = None
        self._idle.set()

    def _stop(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self, error: Exception | None) -> None:
        """Note what is durable, and go on after a pause: half of the device is for others."""
        plan, self._plan = self._plan, None
        self._idle.set()
        if plan is None:
            return  # abandoned meanwhile
        if error is not None:
            self._on_failure(f"a sync failed: {error}")
            return
        self._store.synced(plan)
        if not self._is_closed:
            pause_s = max(_PAUSE_MS / 1000, self._loop.time() - self._began_s)
            self._timer = self._loop.call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self.start()
