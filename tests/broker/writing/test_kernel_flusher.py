"""Syncs by the kernel are reported like those of a thread, which runs the syncs it cannot."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.writing.group_commit import GroupCommit, PutStatus
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.disk import OsDisk
from kourou.kernel_syncs import KernelSyncs
from kourou.open_files import PinnedFile
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore, SyncPlan
from kourou.store.state.abort_file import read_last_run
from kourou.store.writer import StoreWriter

HOST = ("127.0.0.1", 1)
ONE_FILE = SyncPlan(0, 0, ("file",), ())
DRAFT = RecordDraft(b"T", 0, 0, 0, 0, HOST, HOST, 0, 0, b"hello" * 200, b"")
OpenKernel = Callable[[], KernelSyncs | None]


class Failing(KernelSyncs):
    """Reports every sync of the kernel as failed."""

    def result(self) -> int | None:
        return None if super().result() is None else errno.EIO


class _Store:
    """Fake store that records the threads of its syncs and the releases of its file."""

    def __init__(self, fd: int | None) -> None:
        self.threads: list[str] = []
        self.released = 0
        self._fd = fd

    def pinned_sync_file(self, _: SyncPlan) -> PinnedFile:
        if self._fd is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return PinnedFile(self._fd, self._release)

    def _release(self) -> None:
        self.released += 1

    def run_sync(self, _: SyncPlan) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.mark.parametrize("open_kernel", [KernelSyncs.open, lambda: None])
def test_all_puts_are_synced_across_segments(open_kernel: OpenKernel, tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = OsDisk(tmp_path)
        config = BrokerConfig(
            sync_flush_timeout_ms=60_000,
            max_message_size_bytes=1 << 15,
            store=StoreConfig(commitlog_segment_bytes=1 << 16),
        )
        store = MessageStore.open(disk, config.store_config, 0, pid=1)
        flusher = KernelFlusher(loop, open_kernel)
        commit = GroupCommit(store, flusher, loop, config, lambda _: None)
        for _ in range(30):  # some of these syncs are of two segments and their directory
            results = await asyncio.gather(*(commit.put_and_wait([DRAFT], 0) for _ in range(10)))
            assert {result.status for result in results} == {PutStatus.OK}
            assert store.reader.synced_position == store.reader.written_position
        await commit.close()
        store.close(0)
        flusher.close()
        disk.close()

    asyncio.run(main())


def test_a_sync_of_one_file_uses_no_thread(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        store = _Store(file.fileno())
        outcome = asyncio.run(sync_once(store))
    has_kernel = (kernel := KernelSyncs.open()) is not None
    if kernel is not None:
        kernel.close()
    assert outcome == (None, "MainThread")
    assert store.released == has_kernel
    assert store.threads == ([] if has_kernel else ["kourou-flusher"])


async def sync_once(
    store: _Store, open_kernel: OpenKernel = KernelSyncs.open
) -> tuple[Exception | None, str]:
    """Return the error of the sync, and the thread on which `done` was called."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Exception | None, str]] = loop.create_future()
    flusher = KernelFlusher(loop, open_kernel)

    def done(error: Exception | None) -> None:
        ended.set_result((error, threading.current_thread().name))

    flusher.sync(store, ONE_FILE, done)  # type: ignore[arg-type]
    try:
        return await asyncio.wait_for(ended, 30)
    finally:
        flusher.close()


class Refusing(KernelSyncs):
    """Refuses every sync, like a kernel that lacks a resource."""

    def start(self, fd: int) -> bool:
        return False


def test_a_thread_runs_the_syncs_that_the_kernel_refuses() -> None:
    reads, writes = os.pipe()
    for fd, open_kernel in ((writes, KernelSyncs.open), (writes, Refusing.open), (None, None)):
        store = _Store(fd)
        outcome = asyncio.run(sync_once(store, open_kernel or KernelSyncs.open))
        assert outcome == (None, "MainThread")
        assert store.threads == ["kourou-flusher"]
        assert store.released == (fd is not None)
    os.close(reads)
    os.close(writes)


def test_a_failed_sync_is_recorded_before_done_is_called(tmp_path: Path) -> None:
    kernel = KernelSyncs.open()
    if kernel is None:
        return  # threads run the syncs: tests/broker/writing/test_flusher.py
    kernel.close()
    recorded: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = OsDisk(tmp_path)
        config = BrokerConfig(sync_flush_timeout_ms=60_000)
        store = MessageStore.open(disk, config.store_config, 0, pid=1)

        class Watched(KernelFlusher):
            def sync(
                self, writer: StoreWriter, plan: SyncPlan, done: Callable[[Exception | None], None]
            ) -> None:
                def ended(error: Exception | None) -> None:
                    recorded.append(read_last_run(disk).is_cache_suspect)
                    done(error)

                super().sync(writer, plan, ended)

        flusher = Watched(loop, Failing.open)
        commit = GroupCommit(store, flusher, loop, config, lambda _: None)
        # A thread runs the first sync: the segment is new, and its directory is synced too.
        assert (await commit.put_and_wait([DRAFT], 0)).status is PutStatus.OK
        assert (await commit.put_and_wait([DRAFT], 0)).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "Input/output error" in str(store.writer.read_only_reason)
        flusher.close()
        store.abandon()
        disk.close()

    asyncio.run(main())
    assert recorded == [False, True]


def test_a_closed_kernel_flusher_calls_no_done_and_runs_no_sync(tmp_path: Path) -> None:
    outcome: list[Exception | None] = []

    async def main(store: _Store) -> None:
        flusher = KernelFlusher(asyncio.get_running_loop())
        flusher.sync(store, ONE_FILE, outcome.append)  # type: ignore[arg-type]
        flusher.close()
        flusher.close()
        flusher.sync(store, ONE_FILE, outcome.append)  # type: ignore[arg-type]
        await asyncio.sleep(0)

    with (tmp_path / "file").open("wb") as file:
        asyncio.run(main(_Store(file.fileno())))
    assert outcome == []
