"""Expired messages are removed at their hour, on a full disk, or on request."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from itertools import pairwise
from typing import Any, cast

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.writing.index_follower import IndexFollower
from kourou.broker.writing.retention import FIRST_RUN_MS
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.decode import decode_messages
from kourou.store.config import StoreConfig
from kourou.store.retention import RetentionConfig
from kourou.testing.broker_parts import BrokerParts, ColdDisk, run_with_parts, small_config
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer

HOUR_MS = 3_600_000
SEGMENT_BYTES = 8192
BODY = bytes(2_500)  # three fill a segment
BUSY = OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def config(**retention: Any) -> BrokerConfig:
    """Return the config of a broker that removes messages only on request, unless changed."""
    now_hour = datetime.fromtimestamp(EPOCH_MS / 1000).astimezone().hour
    options: dict[str, Any] = {
        "file_reserved_hours": 2,
        "delete_when": f"{(now_hour + 12) % 24}",
    } | retention
    store = StoreConfig(
        commitlog_segment_bytes=SEGMENT_BYTES,
        consumequeue_file_bytes=20 * 4,
        free_bytes_min=1,
        index_entries=5,
        retention=RetentionConfig(**options),
    )
    return small_config(store=store, max_message_size_bytes=4_000, message_delay_level="1h")


def run_with_old_messages(test: Callable[[BrokerParts], Awaitable[None]], **retention: Any) -> None:
    """Run the test on a store of ten segments, of which eight were written three hours ago."""
    run_with_parts(with_old_messages(test), config=config(**retention))


def run_until_read_only(test: Callable[[BrokerParts], Awaitable[None]]) -> None:
    """As `run_with_old_messages`, but the store does not close cleanly: it is opened once more."""
    disk = SimDisk()

    async def main() -> None:
        parts = BrokerParts(disk, config=config())
        await with_old_messages(test)(parts)
        await parts.stop()

    run_virtual(main())

    async def stop(_: BrokerParts) -> None:
        pass

    run_with_parts(stop, disk, config=config())


def with_old_messages(
    test: Callable[[BrokerParts], Awaitable[None]],
) -> Callable[[BrokerParts], Coroutine[Any, Any, None]]:
    """Return a function that stores the messages, and then runs `test`."""

    async def main(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 25)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(parts, 5)
        await settle(parts)
        await test(parts)

    return main


async def store(parts: BrokerParts, count: int) -> None:
    for _ in range(count):
        await parts.store_messages([parts.draft(BODY)])


async def settle(parts: BrokerParts) -> None:
    """Wait until all queue entries are durable."""
    async with asyncio.timeout(60):
        while parts.store.expiry.awaits_queues:
            await asyncio.sleep(1)
            parts.commit.flush(parts.clock.now_ms())


def segments(parts: BrokerParts) -> int:
    return len(parts.disk.list("commitlog"))


def test_nothing_is_removed_without_a_trigger() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.retention.run()
        assert segments(parts) == 10

    run_with_old_messages(test)


def test_expired_segments_and_their_queue_files_are_removed_at_the_configured_hour() -> None:
    async def test(parts: BrokerParts) -> None:
        await parts.retention.run()
        assert segments(parts) == 2
        assert parts.store.reader.min_offset("T", 0) == 24
        assert parts.disk.list("consumequeue/T/0") == [f"{6 * 80:020d}", f"{7 * 80:020d}"]

    at_hour = datetime.fromtimestamp((EPOCH_MS + 3 * HOUR_MS) / 1000).astimezone().hour
    run_with_old_messages(test, delete_when=f"{at_hour:02d}")


def test_index_files_of_removed_messages_are_removed() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        following = IndexFollower(parts.store, parts.runtime.offload, parts.clock)
        following.start()
        for _ in range(30):
            await parts.store_messages([parts.draft(BODY, tags="a")])
            following.notify()
        await settle(parts)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        before = parts.disk.list("index")
        parts.retention.request()
        await parts.retention.run()
        left = parts.disk.list("index")
        await following.stop()
        assert len(before) > 5
        assert left == before[-len(left) :]
        assert len(left) == 2  # the messages of the last segment, and the newest file

    run_with_parts(test, config=config())


def test_a_full_disk_removes_expired_segments_at_any_hour_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.free = 20_000
        await parts.retention.run()
        assert segments(parts) == 2
        assert not caplog.records

        parts.disk.free = 1
        for _ in range(3):
            await parts.retention.run()
        assert segments(parts) == 2
        parts.disk.free = 1 << 30

    with caplog.at_level(logging.WARNING):
        run_with_old_messages(test)
    assert [record.message.split()[0] for record in caplog.records] == ["retention.found_nothing"]


def test_a_request_applies_to_twenty_runs_with_a_limit_per_run() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        left = []
        for _ in range(4):
            await parts.retention.run()
            left.append(segments(parts))
        assert left == [7, 4, 2, 2]

        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(parts, 30)
        for _ in range(16):
            await parts.retention.run()
        assert segments(parts) == 11
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(parts, 1)
        await parts.retention.run()
        assert segments(parts) == 12

    run_with_old_messages(test, delete_files_max=3)


def test_there_is_a_pause_between_two_segments() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        unlinked: list[int] = []

        def watch(operation: str, name: str) -> None:
            if operation == "unlink" and name.startswith("commitlog/"):
                unlinked.append(parts.clock.now_ms())

        parts.disk.on_operation = watch
        await parts.retention.run()
        parts.disk.on_operation = None
        gaps = {later - earlier for earlier, later in pairwise(unlinked)}
        assert len(unlinked) == 8
        assert min(gaps) >= 100

    run_with_old_messages(test)


def test_nothing_is_removed_in_the_first_minute_except_on_request() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = lambda: 0
        await store(parts, 9)
        await settle(parts)
        await parts.retention.run()
        assert segments(parts) == 3
        parts.disk.free = 1
        await parts.retention.run()
        assert segments(parts) == 3
        await asyncio.sleep(FIRST_RUN_MS / 1000)
        await parts.retention.run()
        assert segments(parts) == 1
        parts.disk.free = 1 << 30

    run_with_parts(test, config=config())


def test_a_store_that_is_read_only_keeps_all_its_files() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        parts.store.writer.set_read_only("a sync failed")
        await parts.retention.run()
        assert segments(parts) == 10

    run_until_read_only(test)


def test_the_retention_time_can_be_changed_at_run_time() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        parts.live_config.update({"fileReservedTime": "4"}, parts.clock.now_ms())
        await parts.retention.run()
        assert segments(parts) == 10
        parts.live_config.update({"fileReservedTime": "3"}, parts.clock.now_ms())
        await parts.retention.run()
        assert segments(parts) == 2

    run_with_old_messages(test)


def test_removal_of_a_segment_is_retried_after_a_failure() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        parts.disk.fail_after(0, BUSY, ("unlink",))
        with pytest.raises(OSError, match="busy"):
            await parts.retention.run()
        assert parts.store.reader.min_position == 0
        await parts.retention.run()
        assert segments(parts) == 2

    run_with_old_messages(test)


def test_removal_of_a_queue_file_is_logged_and_retried_after_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        await parts.retention.run()
        await store(parts, 1)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(parts, 1)
        await settle(parts)

        def refuse(operation: str, name: str) -> None:
            if operation == "unlink" and name.startswith("consumequeue/"):
                raise BUSY

        parts.disk.on_operation = refuse
        await parts.retention.run()
        parts.disk.on_operation = None
        assert "consumequeue.removal_failed" in caplog.text
        assert parts.disk.list("consumequeue/T/0")[0] == f"{6 * 80:020d}"
        await parts.retention.clean_queues()
        assert parts.disk.list("consumequeue/T/0")[0] == f"{7 * 80:020d}"

    with caplog.at_level(logging.WARNING):
        run_with_old_messages(test)


def test_a_sync_that_fails_makes_the_store_read_only() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()

        def refuse(operation: str, _: str) -> None:
            if operation == "sync_directory":
                raise OSError(errno.EIO, "Input/output error")

        parts.disk.on_operation = refuse
        with pytest.raises(OSError, match="Input"):
            await parts.retention.run()
        parts.disk.on_operation = None
        assert "a sync failed" in (parts.store.writer.read_only_reason or "")
        # The queue file is kept, because a power cut may restore the segment.
        assert parts.disk.list("consumequeue/T/0")[0] == f"{0:020d}"

    run_until_read_only(test)


def test_consumers_of_removed_messages_continue_at_the_begin_of_the_queue() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        await parts.retention.run()
        answer = parts.pull(parts.connect("c"), queue_offset=3)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "24"
        assert answer.ext_fields["minOffset"] == "24"

    run_with_old_messages(test)


def test_a_read_during_a_removal_skips_no_remaining_message() -> None:
    async def test(parts: BrokerParts) -> None:
        await store(parts, 6)
        peer = FakePeer()
        assert parts.pull(peer) is None  # the read waits for the device
        expiry = parts.store.expiry
        expiry.remove([expiry.hide_segment()])
        await parts.later.close()

        answer = peer.sent[0]
        assert answer.code == ResponseCode.SUCCESS
        found = decode_messages(answer.body)
        assert [message.queue_offset for message in found] == [3]  # the last of its queue file

    run_with_parts(test, ColdDisk(), config=config())


def test_sends_and_topic_deletions_work_during_a_run() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        run = asyncio.create_task(parts.retention.run())
        await asyncio.sleep(0.35)
        await parts.queue_deletion.delete("T")
        await store(parts, 3)
        await run
        assert (parts.store.reader.min_offset("T", 0), parts.store.reader.max_offset("T", 0)) == (
            0,
            3,
        )

    run_with_old_messages(test)


def test_stop_waits_for_the_file_that_is_being_removed() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.retention.request()
        run = asyncio.create_task(parts.retention.run())
        await asyncio.sleep(0.25)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        begin = parts.store.reader.min_position
        assert 0 < begin < 8 * SEGMENT_BYTES
        assert parts.disk.list("commitlog")[0] == f"{begin:020d}"

    run_with_old_messages(test)


def step(parts: BrokerParts, ms: int) -> None:
    cast(LoopClock, parts.clock).step(ms)


async def runs(parts: BrokerParts, hours: float) -> None:
    """Run the retention on request, as often as a broker does."""
    parts.retention.request()
    for _ in range(int(hours * 6)):
        await parts.retention.run()
        await asyncio.sleep(600)
        parts.retention.request()
    await parts.retention.run()


def test_a_wall_clock_days_ahead_for_some_seconds_removes_nothing() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 15)
        step(parts, 73 * HOUR_MS)
        parts.retention.request()
        await parts.retention.run()
        await store(parts, 3)
        await settle(parts)
        await asyncio.sleep(3)
        await parts.retention.run()
        step(parts, -73 * HOUR_MS)
        await store(parts, 3)
        await settle(parts)
        await runs(parts, 1.5)
        assert segments(parts) == 7

    run_with_parts(test, config=config())


def test_files_that_were_written_while_the_clock_was_ahead_expire_in_time() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        step(parts, 73 * HOUR_MS)
        await store(parts, 9)
        step(parts, -73 * HOUR_MS)
        await store(parts, 9)
        await settle(parts)
        await asyncio.sleep(2 * HOUR_MS / 1000 - 60)
        await runs(parts, 0)
        assert segments(parts) == 6
        await runs(parts, 0.2)
        assert segments(parts) == 1

    run_with_parts(test, config=config())


def test_files_that_were_written_while_the_clock_was_behind_do_not_expire_early() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 9)
        step(parts, -73 * HOUR_MS)
        await store(parts, 9)
        step(parts, 73 * HOUR_MS)
        await store(parts, 3)
        await settle(parts)
        await asyncio.sleep(1.9 * HOUR_MS / 1000)
        await runs(parts, 0)
        assert segments(parts) == 7
        await runs(parts, 0.2)
        assert segments(parts) == 1

    run_with_parts(test, config=config())


def test_a_corrected_wall_clock_applies_after_an_hour() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 9)
        step(parts, 73 * HOUR_MS)
        await store(parts, 1)
        await settle(parts)
        await runs(parts, 0.9)
        assert segments(parts) == 4
        await runs(parts, 0.2)
        assert segments(parts) == 2  # the third was closed late

    run_with_parts(test, config=config())


def test_a_broker_started_with_its_clock_ahead_removes_nothing_for_an_hour() -> None:
    async def before(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 9)
        await settle(parts)

    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 3)
        await settle(parts)
        await runs(parts, 0.9)
        assert segments(parts) == 4
        await runs(parts, 0.2)
        assert segments(parts) == 2  # the third was closed late

    disk = run_with_parts(before, config=config())
    run_with_parts(test, disk, config=config(), later_ms=73 * HOUR_MS)


def test_a_clock_jump_is_remembered_across_restarts() -> None:
    async def before(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await store(parts, 9)
        step(parts, 73 * HOUR_MS)
        await parts.retention.run()
        await store(parts, 3)
        await settle(parts)

    async def test(parts: BrokerParts) -> None:
        parts.disk.now_ms = parts.clock.now_ms
        await runs(parts, 0.9)
        assert segments(parts) == 4
        await runs(parts, 0.2)
        assert segments(parts) == 2

    async def after(parts: BrokerParts) -> None:
        assert parts.components.age_clock.now_ms() > EPOCH_MS + 73 * HOUR_MS

    disk = run_with_parts(before, config=config())
    run_with_parts(test, disk, config=config(), later_ms=73 * HOUR_MS + 10_000)
    run_with_parts(after, disk, config=config(), later_ms=75 * HOUR_MS)
