"""Flusher that has the kernel sync the log asynchronously, and a thread where the kernel cannot.

Nearly every sync of the log is of one file; these go to the kernel. A plan with more steps, about
one per segment of the log, and the syncs of queue files go to `ThreadFlusher`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from kourou.broker.writing.flusher import SyncEnded, ThreadFlusher
from kourou.kernel_syncs import NOT_BEGUN, KernelSyncs
from kourou.open_files import PinnedFile
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter


class _Work(NamedTuple):
    writer: StoreWriter
    plan: SyncPlan
    file: PinnedFile
    done: SyncEnded


class KernelFlusher:
    """The flusher of the broker process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_kernel: Callable[[], KernelSyncs | None] = KernelSyncs.open,
    ) -> None:
        """Create a flusher on `loop`; if `open_kernel` returns None, threads run all syncs."""
        self._loop = loop
        self._threads = ThreadFlusher(loop)
        self._work: _Work | None = None  # set while the kernel syncs
        self._kernel = open_kernel()
        if self._kernel is not None:
            loop.add_reader(self._kernel.ended_fd, self._on_end)

    def sync(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        if self._kernel is None or not self._start(self._kernel, writer, plan, done):
            self._threads.sync(writer, plan, done)

    def sync_queues(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        self._threads.sync_queues(writer, plan, done)

    def close(self) -> None:
        self._threads.close()
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.ended_fd)
            self._kernel.close()
            self._kernel = None

    def _start(
        self, kernel: KernelSyncs, writer: StoreWriter, plan: SyncPlan, done: SyncEnded
    ) -> bool:
        """Start the sync in the kernel; return False if it must run on a thread.

        If the file cannot be opened, the sync on the thread reports the error.
        """
        try:
            file = writer.pinned_sync_file(plan)
        except OSError:
            return False
        if file is None:
            return False
        if not kernel.start(file.fd):
            file.release()
            return False
        self._work = _Work(writer, plan, file, done)
        return True

    def _on_end(self) -> None:
        """Call `done` of the sync that ended, or run it on a thread if the kernel did not."""
        assert self._kernel is not None, "a closed flusher has no reader"
        result = self._kernel.result()
        work = self._work
        if result is None or work is None:
            return
        self._work = None
        work.file.release()
        if not result:
            work.done(None)
            return
        if result in NOT_BEGUN:
            self._threads.sync(work.writer, work.plan, work.done)
            return
        work.writer.note_failed_sync()  # before `done`: a kill may come in between
        work.done(OSError(result, os.strerror(result)))
