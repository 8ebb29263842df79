"""The flusher syncs on its own thread, one plan at a time, and reports each end on the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.writing.flusher import ThreadFlusher
from kourou.broker.writing.group_commit import GroupCommit, PutStatus
from kourou.disk import OsDisk
from kourou.protocol.record.encode import RecordDraft
from kourou.store.message_store import MessageStore, SyncPlan

HOST = ("127.0.0.1", 1)
NOTHING = SyncPlan(0, 0, (), ())
DRAFT = RecordDraft(b"T", 0, 0, 0, 0, HOST, HOST, 0, 0, b"hello", b"")


class _Store:
    """Fake store that records the thread of each sync, and fails on demand."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.threads: list[str] = []

    def run_sync(self, _: SyncPlan) -> None:
        self.threads.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error


async def sync_once(store: object) -> Exception | None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Exception | None] = loop.create_future()
    queues_ended: asyncio.Future[Exception | None] = loop.create_future()
    flusher = ThreadFlusher(loop)
    flusher.sync(store, NOTHING, ended.set_result)  # type: ignore[arg-type]
    flusher.sync_queues(_Store(), NOTHING, queues_ended.set_result)  # type: ignore[arg-type]
    try:
        await asyncio.wait_for(queues_ended, 30)
        return await asyncio.wait_for(ended, 30)
    finally:
        flusher.close()


def test_a_sync_runs_off_the_loop() -> None:
    store = _Store()

    assert asyncio.run(sync_once(store)) is None
    assert store.threads == ["kourou-flusher"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("a bug")])
def test_every_error_of_a_sync_is_reported(error: Exception) -> None:
    assert asyncio.run(sync_once(_Store(error))) is error


def test_each_sync_calls_its_own_done_on_the_loop() -> None:
    refused = OSError(5, "Input/output error")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        flusher = ThreadFlusher(loop)
        results: list[tuple[Exception | None, str]] = []
        for store in (_Store(), _Store(refused), _Store()):
            ended = asyncio.Event()

            def done(error: Exception | None, ended: asyncio.Event = ended) -> None:
                results.append((error, threading.current_thread().name))
                ended.set()

            flusher.sync(store, NOTHING, done)  # type: ignore[arg-type]
            await asyncio.wait_for(ended.wait(), 30)
        flusher.close()
        assert results == [(error, "MainThread") for error in (None, refused, None)]

    asyncio.run(main())


def test_done_may_start_the_next_sync() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        flusher = ThreadFlusher(loop)
        store = _Store()
        ended = loop.create_future()

        def done(_: Exception | None) -> None:
            if len(store.threads) < 100:
                flusher.sync(store, NOTHING, done)  # type: ignore[arg-type]
            else:
                ended.set_result(None)

        flusher.sync(store, NOTHING, done)  # type: ignore[arg-type]
        await asyncio.wait_for(ended, 30)
        flusher.close()
        assert len(store.threads) == 100

    asyncio.run(main())


def test_closing_during_a_sync_ends_the_thread_without_calling_done() -> None:
    gate = threading.Event()
    ended: list[Exception | None] = []

    class Slow(_Store):
        def run_sync(self, plan: SyncPlan) -> None:
            super().run_sync(plan)
            gate.wait(30)

    async def main() -> threading.Thread:
        flusher = ThreadFlusher(asyncio.get_running_loop())
        flusher.sync(Slow(), NOTHING, ended.append)  # type: ignore[arg-type]
        flusher.close()
        flusher.close()
        return log_thread()

    thread = asyncio.run(main())
    assert thread.is_alive()
    gate.set()
    thread.join(30)
    assert not thread.is_alive()
    assert ended == []


def log_thread() -> threading.Thread:
    """Return the newest thread that syncs a commit log."""
    return [one for one in threading.enumerate() if one.name == "kourou-flusher"][-1]


def test_a_sync_of_the_log_does_not_wait_for_one_of_queue_files() -> None:
    gate, log = threading.Event(), _Store()

    class Slow(_Store):
        def run_sync(self, plan: SyncPlan) -> None:
            gate.wait(30)
            super().run_sync(plan)

    queues = Slow()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        flusher = ThreadFlusher(loop)
        both = [loop.create_future() for _ in "12"]
        flusher.sync_queues(queues, NOTHING, both[0].set_result)  # type: ignore[arg-type]
        flusher.sync(log, NOTHING, both[1].set_result)  # type: ignore[arg-type]
        assert await asyncio.wait_for(both[1], 30) is None
        assert queues.threads == []
        gate.set()
        assert await asyncio.wait_for(both[0], 30) is None
        flusher.close()

    asyncio.run(main())
    assert (log.threads, queues.threads) == (["kourou-flusher"], ["kourou-queue-flusher"])


def test_a_closed_flusher_runs_no_sync() -> None:
    store = _Store()

    async def main() -> threading.Thread:
        flusher = ThreadFlusher(asyncio.get_running_loop())
        thread = log_thread()
        flusher.close()
        flusher.sync(store, NOTHING, lambda _: None)  # type: ignore[arg-type]
        flusher.sync_queues(store, NOTHING, lambda _: None)  # type: ignore[arg-type]
        return thread

    asyncio.run(main()).join(30)
    assert store.threads == []


def test_closed_flushers_leave_no_descriptor_open() -> None:
    def open_files() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    async def main() -> tuple[int, int]:
        await sync_once(_Store())
        before = open_files()
        for _ in range(10):
            await sync_once(_Store())
        for thread in threading.enumerate():
            if thread.name in ("kourou-flusher", "kourou-queue-flusher"):
                thread.join(30)
        return before, open_files()

    before, after = asyncio.run(main())
    assert after <= before


def test_many_messages_share_few_syncs_of_a_real_disk(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = OsDisk(tmp_path)
        config = BrokerConfig(sync_flush_timeout_ms=60_000)
        store = MessageStore.open(disk, config.store_config, 0, pid=1)
        flusher = ThreadFlusher(loop)
        commit = GroupCommit(store, flusher, loop, config, lambda _: None)
        results = await asyncio.gather(*(commit.put_and_wait([DRAFT], 0) for _ in range(500)))
        assert {result.status for result in results} == {PutStatus.OK}
        assert store.reader.synced_position == store.reader.written_position
        await commit.close()
        store.close(0)
        flusher.close()
        disk.close()

    asyncio.run(main())
