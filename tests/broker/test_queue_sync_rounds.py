"""A round of queue files uses the time in which the log needs no sync, and not all of it."""

from __future__ import annotations

import asyncio
from typing import Any

from kourou.broker.config import FlushDiskType
from kourou.store.config import StoreConfig
from kourou.testing.clock import EPOCH_MS
from tests.broker.test_group_commit import KIB, Bench, draft, run

ASYNC: dict[str, Any] = {
    "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
    "flush_interval_ms": 500,
    "store": StoreConfig(
        commitlog_segment_bytes=64 * KIB, free_bytes_min=1, queue_files_per_sync=2
    ),
}
QUEUES = 100


async def begin_round(bench: Bench) -> None:
    """Let many queues wait for a sync, and the log for none."""
    for queue_id in range(QUEUES):
        bench.put(draft(queue_id=queue_id))
    await asyncio.sleep(1)
    assert bench.store.synced_position == bench.store.written_position
    while not bench.commit.flush(EPOCH_MS + 3_600_000):  # noqa: ASYNC110 - each call does a part
        await asyncio.sleep(0.02)


def test_in_async_mode_many_idle_queues_are_synced_soon() -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        assert bench.store.has_queue_files_to_sync

        await asyncio.sleep(5)

        assert not bench.store.has_queue_files_to_sync

    run(test, **ASYNC)


def test_a_round_leaves_half_of_the_time_to_others() -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        before = bench.flusher.sync_count

        await asyncio.sleep(0.4)

        assert 1 < bench.flusher.sync_count - before <= 20

    run(test, **ASYNC)


def test_a_round_that_goes_on_keeps_nobody_from_closing() -> None:
    async def test(bench: Bench) -> None:
        await begin_round(bench)
        await bench.commit.close()
        after = bench.flusher.sync_count

        await asyncio.sleep(1)

        assert bench.flusher.sync_count <= after + 1

    run(test, **ASYNC)
