"""Syncs files without blocking the event loop: one thread for the log, one for queue files.

The store's `run_sync` defines which files are synced and in which order. `group_commit.py` and
`queue_syncs.py` decide when, and what follows. If the kernel can sync the log asynchronously, the
log's thread runs only the syncs that the kernel cannot (`kernel_flusher.py`). The simulated
counterpart is `kourou.testing.flusher.SimFlusher`.

Sends wait for the sync of the log. When the log shared a thread with the queue files, its sync
waited up to 50 ms for eight of them.

A thread and the loop communicate by two pipes, with one byte in each direction per sync. A
`queue.SimpleQueue` to the thread and `call_soon_threadsafe` back take 53 us where the pipes take 40
(with uvloop; without it 82 and 54), in addition to the 0.2 ms of the sync itself. Closing one end
ends the other side.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter

SyncEnded = Callable[[Exception | None], None]
"""Called on the event loop when a sync ended, with its error or None."""


class Flusher(Protocol):
    """Runs at most one sync of the log and one of queue files at a time, off the event loop."""

    def sync(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        """Start `writer.run_sync(plan)` and return at once; `done` is called later, on the loop.

        The previous sync must have ended.
        """

    def sync_queues(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        """Start a sync of queue files, independent of `sync`.

        The previous sync of queue files must have ended.
        """

    def close(self) -> None:
        """End the threads once their running syncs have ended.

        The `done` of a running sync is possibly not called. Later calls of `sync` do nothing.
        Closing twice is harmless.
        """


class _Work(NamedTuple):
    writer: StoreWriter
    plan: SyncPlan
    done: SyncEnded


class ThreadFlusher:
    """Flusher on threads. The second thread starts with the first sync of queue files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._log = _SyncThread(loop, "kourou-flusher")
        self._queues: _SyncThread | None = None
        self._is_closed = False

    def sync(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        self._log.sync(writer, plan, done)

    def sync_queues(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        if self._is_closed:
            return
        if self._queues is None:
            self._queues = _SyncThread(self._loop, "kourou-queue-flusher")
        self._queues.sync(writer, plan, done)

    def close(self) -> None:
        self._is_closed = True
        self._log.close()
        if self._queues is not None:
            self._queues.close()


class _SyncThread:
    """A thread that runs syncs, which block in `fdatasync`.

    Between the byte that starts a sync and the byte that ends it, only the thread accesses `_work`
    and `_error`; at all other times only the loop does. So neither needs a lock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._work: _Work | None = None
        self._error: Exception | None = None
        # Each side closes the descriptors that it uses: one closed by the other side could already
        # belong to a new file.
        started, self._start = os.pipe()
        self._ended, end = os.pipe()
        self._is_closed = False
        loop.add_reader(self._ended, self._on_end)
        # A daemon thread, so that a disk that never responds does not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, args=(started, end), name=name, daemon=True
        )
        self._thread.start()

    def sync(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        if self._is_closed:
            return
        self._work = _Work(writer, plan, done)
        os.write(self._start, b"s")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        os.close(self._start)

    def _on_end(self) -> None:
        """Call `done` of the sync that ended, on the loop."""
        os.read(self._ended, 1)
        work, self._work = self._work, None
        error, self._error = self._error, None
        if work is not None:
            work.done(error)

    def _run(self, started: int, end: int) -> None:
        """Run syncs on the thread until the loop's side closes."""
        while os.read(started, 1):
            if self._work is not None:
                self._error = _sync(self._work.writer, self._work.plan)
            try:
                os.write(end, b"e")
            except BrokenPipeError:
                break
        os.close(started)
        os.close(end)


def _sync(writer: StoreWriter, plan: SyncPlan) -> Exception | None:
    """Run the sync, and return its error or None."""
    try:
        writer.run_sync(plan)
    except Exception as error:  # noqa: BLE001  # a dead thread would look like a slow disk
        return error
    return None
