"""A broker makes the log's next segment while sends go on, and gives up without harm."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

import pytest

from kourou.broker.segments_ahead import SegmentsAhead
from kourou.store.config import StoreConfig
from kourou.testing.broker_parts import BrokerParts, run_with_parts, small_config
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual

CONFIG = small_config(
    store=StoreConfig(commitlog_segment_bytes=8192, free_bytes_min=1), max_message_size_bytes=4_000
)
BODY = bytes(2_500)  # three fill a segment


def made_ahead(parts: BrokerParts) -> SegmentsAhead:
    ahead = SegmentsAhead(parts.store, parts.runtime.offload)
    parts.commit.on_write = ahead.on_write
    return ahead


async def store(parts: BrokerParts, count: int) -> None:
    for _ in range(count):
        await parts.store_messages([parts.draft(BODY)])
        await asyncio.sleep(0.01)


def segments(parts: BrokerParts) -> int:
    return len(parts.disk.list("commitlog"))


def test_a_segment_is_made_when_the_last_is_half_full_and_gone_after_a_stop() -> None:
    async def test(parts: BrokerParts) -> None:
        ahead = made_ahead(parts)
        await store(parts, 1)
        assert segments(parts) == 1
        await store(parts, 1)
        assert segments(parts) == 2
        await store(parts, 7)
        assert segments(parts) == 4
        await ahead.stop()

    disk = SimDisk()
    run_with_parts(test, disk, config=CONFIG)
    assert len(disk.list("commitlog")) == 3


def test_none_is_made_where_it_would_take_what_is_kept_free() -> None:
    async def test(parts: BrokerParts) -> None:
        made_ahead(parts)
        parts.disk.free = 8192
        await store(parts, 2)
        assert segments(parts) == 1
        parts.disk.free = 1 << 30
        await store(parts, 7)

    run_with_parts(test, config=CONFIG)


def test_a_disk_that_fills_up_meanwhile_takes_messages_as_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(parts: BrokerParts) -> None:
        made_ahead(parts)
        await store(parts, 1)

        def refuse(operation: str, name: str) -> None:
            if operation == "write" and name == f"commitlog/{8192:020d}":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        parts.disk.on_operation = refuse
        await store(parts, 1)
        parts.disk.on_operation = None
        assert segments(parts) == 1
        await store(parts, 7)

    with caplog.at_level(logging.WARNING):
        run_with_parts(test, config=CONFIG)
    assert "segment.not_made start=8192" in caplog.text


def test_a_broken_disk_makes_the_store_read_only() -> None:
    async def main() -> None:
        parts = BrokerParts(SimDisk(), config=CONFIG)
        made_ahead(parts)
        await store(parts, 1)

        def refuse(operation: str, name: str) -> None:
            if operation == "sync" and name == f"commitlog/{8192:020d}":
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        parts.disk.on_operation = refuse
        await parts.commit.put_and_wait([parts.draft(BODY)], parts.clock.now_ms())
        await asyncio.sleep(0.1)
        assert "a write failed" in (parts.store.read_only_reason or "")
        await parts.stop()

    run_virtual(main())
