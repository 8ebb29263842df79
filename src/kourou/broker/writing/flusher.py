"""Syncing files without blocking the event loop: one thread for the log, one for queue files.

What to sync, and in which order, is the store's `run_sync`; when, and what follows, is
`group_commit.py` and `queue_syncs.py`. Where the kernel can sync the log by itself, the thread for
the log does what is left (`kernel_flusher.py`). The simulated counterpart is
`kourou.testing.flusher.SimFlusher`.

The log's sync is what sends wait for; behind eight queue files on one thread it took up to 50 ms.

Two pipes join a thread and the loop, a byte each way a sync. A `queue.SimpleQueue` there and
`call_soon_threadsafe` back do the same, but take 53 us where the pipes take 40 (uvloop; without it
82 and 54), beside the 0.2 ms of the sync itself. An end that is closed tells the other one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kourou.store.message_store import MessageStore, SyncPlan

SyncEnded = Callable[[Exception | None], None]
"""Called on the loop when a sync ended: None, or why it failed."""


class Flusher(Protocol):
    """Runs one sync of the log and one of queue files at a time, while the event loop goes on."""

    def sync(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        """Start `store.run_sync(plan)` and return at once; `done` is called on the loop, later.

        The sync before it must have ended.
        """

    def sync_queues(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        """Do the same beside `sync`; only the one before it of this kind must have ended."""

    def close(self) -> None:
        """End the threads, once the syncs that run have ended; their `done` may be left out.

        A sync that is asked for after that is not run. Closing twice is harmless.
        """


class _Work(NamedTuple):
    store: MessageStore
    plan: SyncPlan
    done: SyncEnded


class ThreadFlusher:
    """The real flusher. The second thread begins with the first queue files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._log = _SyncThread(loop, "kourou-flusher")
        self._queues: _SyncThread | None = None
        self._is_closed = False

    def sync(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        self._log.sync(store, plan, done)

    def sync_queues(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        if self._is_closed:
            return
        if self._queues is None:
            self._queues = _SyncThread(self._loop, "kourou-queue-flusher")
        self._queues.sync(store, plan, done)

    def close(self) -> None:
        self._is_closed = True
        self._log.close()
        if self._queues is not None:
            self._queues.close()


class _SyncThread:
    """A thread that waits in `fdatasync` so that the loop does not.

    `_work` is the thread's between the byte that starts a sync and the byte that ends it, and
    `_error` is its answer; at all other times both are the loop's. So neither needs a lock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._work: _Work | None = None
        self._error: Exception | None = None
        # Each end is closed by the side that uses it: a number that was closed by the other one
        # could be some new file's by then.
        started, self._start = os.pipe()
        self._ended, end = os.pipe()
        self._is_closed = False
        loop.add_reader(self._ended, self._on_end)
        # A daemon: a disk that never answers must not keep a stopped process alive.
        self._thread = threading.Thread(
            target=self._run, args=(started, end), name=name, daemon=True
        )
        self._thread.start()

    def sync(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        if self._is_closed:
            return
        self._work = _Work(store, plan, done)
        os.write(self._start, b"s")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        os.close(self._start)

    def _on_end(self) -> None:
        """Tell whoever waits, on the loop."""
        os.read(self._ended, 1)
        work, self._work = self._work, None
        error, self._error = self._error, None
        if work is not None:
            work.done(error)

    def _run(self, started: int, end: int) -> None:
        """Run syncs on the thread until the loop's side closes."""
        while os.read(started, 1):
            if self._work is not None:
                self._error = _sync(self._work.store, self._work.plan)
            try:
                os.write(end, b"e")
            except BrokenPipeError:
                break
        os.close(started)
        os.close(end)


def _sync(store: MessageStore, plan: SyncPlan) -> Exception | None:
    """Run the sync and return why it failed, None if it did not."""
    try:
        store.run_sync(plan)
    except Exception as error:  # noqa: BLE001  # a thread that died would look like a slow disk
        return error
    return None
