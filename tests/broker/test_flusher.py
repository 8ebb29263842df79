"""The flusher syncs on its own thread, one plan at a time, and tells the loop of every end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.flusher import ThreadFlusher
from kourou.broker.group_commit import GroupCommit, PutStatus
from kourou.disk import OsDisk
from kourou.protocol.message_layout import RecordDraft
from kourou.store.message_store import MessageStore, SyncPlan

HOST = ("127.0.0.1", 1)
DRAFT = RecordDraft(b"T", 0, 0, 0, 0, HOST, HOST, 0, 0, b"hello", b"")


class _Store:
    """Stands for a store: notes on which thread it is synced, and fails when told to."""

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
    flusher = ThreadFlusher(loop)
    flusher.sync(store, SyncPlan(0, 0, (), ()), ended.set_result)  # type: ignore[arg-type]
    try:
        return await asyncio.wait_for(ended, 5)
    finally:
        flusher.close()


def test_a_sync_runs_off_the_loop() -> None:
    store = _Store()

    assert asyncio.run(sync_once(store)) is None
    assert store.threads == ["kourou-flusher"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("a bug")])
def test_whatever_fails_is_told(error: Exception) -> None:
    assert asyncio.run(sync_once(_Store(error))) is error


def test_a_sync_that_ends_after_its_loop_is_nobodys_business() -> None:
    gate = threading.Event()

    class Slow(_Store):
        def run_sync(self, _: SyncPlan) -> None:
            gate.wait(5)

    async def main() -> threading.Thread:
        flusher = ThreadFlusher(asyncio.get_running_loop())
        plan = SyncPlan(0, 0, (), ())
        flusher.sync(Slow(), plan, lambda _: None)  # type: ignore[arg-type]
        return flusher._thread

    thread = asyncio.run(main())
    gate.set()
    thread.join(5)
    assert not thread.is_alive()


def test_many_messages_share_few_syncs_of_a_real_disk(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = OsDisk(tmp_path)
        config = BrokerConfig()
        store = MessageStore.open(disk, config.store_config, 0, pid=1)
        flusher = ThreadFlusher(loop)
        commit = GroupCommit(store, flusher, loop, config, lambda _: None)
        results = await asyncio.gather(*(commit.put_and_wait([DRAFT], 0) for _ in range(500)))
        assert {result.status for result in results} == {PutStatus.OK}
        assert store.synced_position == store.written_position
        await commit.close()
        store.close(0)
        flusher.close()
        disk.close()

    asyncio.run(main())
