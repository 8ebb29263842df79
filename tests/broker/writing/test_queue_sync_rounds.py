"""Syncs of queue files do not delay syncs of the log, and leave half of the time to others."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.writing.group_commit import PutStatus
from kourou.store.config import StoreConfig
from kourou.store.state.checkpoint import load_checkpoint
from kourou.testing.clock import EPOCH_MS
from tests.broker.writing.test_group_commit import KIB, Bench, draft, run

SYNC: dict[str, Any] = {
    "store": StoreConfig(
        commitlog_segment_bytes=64 * KIB, free_bytes_min=1, queue_files_per_sync=2
    ),
}
ASYNC = SYNC | {"flush_disk_type": FlushDiskType.ASYNC_FLUSH, "flush_interval_ms": 500}
QUEUES = 100


def durable_position(bench: Bench) -> int:
    """Return the log position up to which the queues are durable."""
    bench.commit.flush(EPOCH_MS)
    return load_checkpoint(bench.disk).queues_offset


async def begin_round(bench: Bench) -> None:
    """Leave many queues unsynced, and the log synced."""
    for queue_id in range(QUEUES):
        bench.put(draft(queue_id=queue_id))
    await asyncio.sleep(1)
    assert bench.store.reader.synced_position == bench.store.reader.written_position
    while not bench.commit.flush(EPOCH_MS + 3_600_000):  # noqa: ASYNC110 - each call does a part
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("options", [SYNC, ASYNC], ids=["sync", "async"])
def test_many_idle_queues_are_synced_soon(options: dict[str, Any]) -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        assert durable_position(bench) == 0

        await asyncio.sleep(5)

        assert durable_position(bench) > 0

    run(test, **options)


def test_no_send_waits_for_syncs_of_queue_files() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.sync_queues = lambda *_: None  # type: ignore[method-assign]  # never ends
        await begin_round(bench)

        bench.put(draft())
        await asyncio.sleep(0.1)

        assert bench.statuses == [PutStatus.OK] * (QUEUES + 1)
        bench.commit.abandon()

    run(test, **SYNC)


def test_queue_files_that_cannot_be_synced_make_the_store_read_only() -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        bench.flusher.fail_next(OSError(errno.EIO, "broken"))
        await asyncio.sleep(1)

        assert "broken" in (bench.store.writer.read_only_reason or "")
        assert durable_position(bench) == 0

    run(test, **SYNC)


def test_a_round_uses_at_most_half_of_the_time() -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        before = bench.flusher.sync_count

        await asyncio.sleep(0.4)

        assert 1 < bench.flusher.sync_count - before <= 40

    run(test, **SYNC)


def test_a_running_round_does_not_delay_close() -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        await bench.commit.close()
        after = bench.flusher.sync_count

        await asyncio.sleep(1)

        assert bench.flusher.sync_count == after

    run(test, **SYNC)
