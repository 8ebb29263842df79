"""Syncing the commit log without blocking the event loop: one thread, one sync at a time.

What to sync, and in which order, is the store's `run_sync`; when, and what follows, is
`group_commit.py`. The simulated counterpart is `kourou.testing.flusher.SimFlusher`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from kourou.store.message_store import MessageStore, SyncPlan

SyncEnded = Callable[[Exception | None], None]
"""Called on the loop when a sync ended: None, or why it failed."""


class Flusher(Protocol):
    """Runs one sync at a time, while the event loop goes on."""

    def sync(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        """Start `store.run_sync(plan)` and return at once; `done` is called on the loop, later.

        The sync before it must have ended.
        """

    def close(self) -> None:
        """End the thread, once the sync that runs has ended; its `done` may still be called."""


class ThreadFlusher:
    """The real flusher: a thread that waits in `fdatasync` so that the loop does not."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[MessageStore, SyncPlan, SyncEnded] | None] = (
            queue.SimpleQueue()
        )
        # A daemon: a disk that never answers must not keep a stopped process alive.
        self._thread = threading.Thread(target=self._run, name="kourou-flusher", daemon=True)
        self._thread.start()

    def sync(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        self._work.put((store, plan, done))

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            store, plan, done = work
            error = _sync(store, plan)
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:
                return  # the loop was closed, so that nobody waits for the answer any more


def _sync(store: MessageStore, plan: SyncPlan) -> Exception | None:
    """Run the sync and return why it failed, None if it did not."""
    try:
        store.run_sync(plan)
    except Exception as error:  # noqa: BLE001  # a thread that died would look like a slow disk
        return error
    return None
