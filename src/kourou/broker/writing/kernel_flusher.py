"""Syncing the log by the kernel itself, where it can; by a thread where it cannot.

Nearly each sync is of one file: that is what the kernel is asked for. A plan with more to it, which
is one in a segment of the log, and the queue files' go to `ThreadFlusher`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from kourou.broker.writing.flusher import SyncEnded, ThreadFlusher
from kourou.kernel_syncs import NOT_BEGUN, KernelSyncs
from kourou.open_files import PinnedFile
from kourou.store.message_store import MessageStore, SyncPlan


class _Work(NamedTuple):
    store: MessageStore
    plan: SyncPlan
    file: PinnedFile
    done: SyncEnded


class KernelFlusher:
    """The flusher of a real disk."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_kernel: Callable[[], KernelSyncs | None] = KernelSyncs.open,
    ) -> None:
        """Serve the broker on `loop`; `open_kernel` returns None where threads do all syncs."""
        self._loop = loop
        self._threads = ThreadFlusher(loop)
        self._work: _Work | None = None  # while the kernel syncs
        self._kernel = open_kernel()
        if self._kernel is not None:
            loop.add_reader(self._kernel.ended_fd, self._on_end)

    def sync(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        if self._kernel is None or not self._start(self._kernel, store, plan, done):
            self._threads.sync(store, plan, done)

    def sync_queues(self, store: MessageStore, plan: SyncPlan, done: SyncEnded) -> None:
        self._threads.sync_queues(store, plan, done)

    def close(self) -> None:
        self._threads.close()
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.ended_fd)
            self._kernel.close()
            self._kernel = None

    def _start(
        self, kernel: KernelSyncs, store: MessageStore, plan: SyncPlan, done: SyncEnded
    ) -> bool:
        """Let the kernel begin; False if that is not for it, or fails: a thread says why."""
        try:
            file = store.pinned_to_sync(plan)
        except OSError:
            return False
        if file is None:
            return False
        if not kernel.start(file.fd):
            file.release()
            return False
        self._work = _Work(store, plan, file, done)
        return True

    def _on_end(self) -> None:
        """Tell whoever waits."""
        assert self._kernel is not None, "nobody watches a closed one"
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
            self._threads.sync(work.store, work.plan, work.done)
            return
        work.store.note_failed_sync()  # first: a kill may come before anybody is told
        work.done(OSError(result, os.strerror(result)))
