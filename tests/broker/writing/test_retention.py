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
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, run_with_broker, small_config

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


def run_with_old_messages(
    test: Callable[[SimulatedBroker], Awaitable[None]], **retention: Any
) -> None:
    """Run the test on a store of ten segments, of which eight were written three hours ago."""
    run_with_broker(with_old_messages(test), config=config(**retention))


def run_until_read_only(test: Callable[[SimulatedBroker], Awaitable[None]]) -> None:
    """As `run_with_old_messages`, but the store does not close cleanly: it is opened once more."""
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk, config=config())
        await with_old_messages(test)(broker)
        await broker.stop()

    run_virtual(main())

    async def stop(_: SimulatedBroker) -> None:
        pass

    run_with_broker(stop, disk, config=config())


def with_old_messages(
    test: Callable[[SimulatedBroker], Awaitable[None]],
) -> Callable[[SimulatedBroker], Coroutine[Any, Any, None]]:
    """Return a function that stores the messages, and then runs `test`."""

    async def main(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 25)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(broker, 5)
        await settle(broker)
        await test(broker)

    return main


async def store(broker: SimulatedBroker, count: int) -> None:
    for _ in range(count):
        await broker.store_messages([broker.draft(BODY)])


async def settle(broker: SimulatedBroker) -> None:
    """Wait until all queue entries are durable."""
    async with asyncio.timeout(60):
        while broker.store.expiry.awaits_queues:
            await asyncio.sleep(1)
            broker.commit.flush(broker.clock.now_ms())


def segments(broker: SimulatedBroker) -> int:
    return len(broker.disk.list("commitlog"))


def test_nothing_is_removed_without_a_trigger() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.retention.run()
        assert segments(broker) == 10

    run_with_old_messages(test)


def test_expired_segments_and_their_queue_files_are_removed_at_the_configured_hour() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.retention.run()
        assert segments(broker) == 2
        assert broker.store.reader.min_offset("T", 0) == 24
        assert broker.disk.list("consumequeue/T/0") == [f"{6 * 80:020d}", f"{7 * 80:020d}"]

    at_hour = datetime.fromtimestamp((EPOCH_MS + 3 * HOUR_MS) / 1000).astimezone().hour
    run_with_old_messages(test, delete_when=f"{at_hour:02d}")


def test_index_files_of_removed_messages_are_removed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        following = IndexFollower(broker.store, broker.runtime.offload, broker.clock)
        following.start()
        for _ in range(30):
            await broker.store_messages([broker.draft(BODY, tags="a")])
            following.notify()
        await settle(broker)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        before = broker.disk.list("index")
        broker.retention.request()
        await broker.retention.run()
        left = broker.disk.list("index")
        await following.stop()
        assert len(before) > 5
        assert left == before[-len(left) :]
        assert len(left) == 2  # the messages of the last segment, and the newest file

    run_with_broker(test, config=config())


def test_a_full_disk_removes_expired_segments_at_any_hour_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.free = 20_000
        await broker.retention.run()
        assert segments(broker) == 2
        assert not caplog.records

        broker.disk.free = 1
        for _ in range(3):
            await broker.retention.run()
        assert segments(broker) == 2
        broker.disk.free = 1 << 30

    with caplog.at_level(logging.WARNING):
        run_with_old_messages(test)
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "retention.found_nothing"
    ]


def test_a_request_applies_to_twenty_runs_with_a_limit_per_run() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        left = []
        for _ in range(4):
            await broker.retention.run()
            left.append(segments(broker))
        assert left == [7, 4, 2, 2]

        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(broker, 30)
        for _ in range(16):
            await broker.retention.run()
        assert segments(broker) == 11
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(broker, 1)
        await broker.retention.run()
        assert segments(broker) == 12

    run_with_old_messages(test, delete_files_max=3)


def test_there_is_a_pause_between_two_segments() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        unlinked: list[int] = []

        def watch(operation: str, name: str) -> None:
            if operation == "unlink" and name.startswith("commitlog/"):
                unlinked.append(broker.clock.now_ms())

        broker.disk.on_operation = watch
        await broker.retention.run()
        broker.disk.on_operation = None
        gaps = {later - earlier for earlier, later in pairwise(unlinked)}
        assert len(unlinked) == 8
        assert min(gaps) >= 100

    run_with_old_messages(test)


def test_nothing_is_removed_in_the_first_minute_except_on_request() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = lambda: 0
        await store(broker, 9)
        await settle(broker)
        await broker.retention.run()
        assert segments(broker) == 3
        broker.disk.free = 1
        await broker.retention.run()
        assert segments(broker) == 3
        await asyncio.sleep(FIRST_RUN_MS / 1000)
        await broker.retention.run()
        assert segments(broker) == 1
        broker.disk.free = 1 << 30

    run_with_broker(test, config=config())


def test_a_store_that_is_read_only_keeps_all_its_files() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        broker.store.writer.set_read_only("a sync failed")
        await broker.retention.run()
        assert segments(broker) == 10

    run_until_read_only(test)


def test_the_retention_time_can_be_changed_at_run_time() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        broker.live_config.update({"fileReservedTime": "4"}, broker.clock.now_ms())
        await broker.retention.run()
        assert segments(broker) == 10
        broker.live_config.update({"fileReservedTime": "3"}, broker.clock.now_ms())
        await broker.retention.run()
        assert segments(broker) == 2

    run_with_old_messages(test)


def test_removal_of_a_segment_is_retried_after_a_failure() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        broker.disk.fail_after(0, BUSY, ("unlink",))
        with pytest.raises(OSError, match="busy"):
            await broker.retention.run()
        assert broker.store.reader.min_position == 0
        await broker.retention.run()
        assert segments(broker) == 2

    run_with_old_messages(test)


def test_removal_of_a_queue_file_is_logged_and_retried_after_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        await broker.retention.run()
        await store(broker, 1)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await store(broker, 1)
        await settle(broker)

        def refuse(operation: str, name: str) -> None:
            if operation == "unlink" and name.startswith("consumequeue/"):
                raise BUSY

        broker.disk.on_operation = refuse
        await broker.retention.run()
        broker.disk.on_operation = None
        assert "consumequeue.removal_failed" in caplog.text
        assert broker.disk.list("consumequeue/T/0")[0] == f"{6 * 80:020d}"
        await broker.retention.clean_queues()
        assert broker.disk.list("consumequeue/T/0")[0] == f"{7 * 80:020d}"

    with caplog.at_level(logging.WARNING):
        run_with_old_messages(test)


def test_a_sync_that_fails_makes_the_store_read_only() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()

        def refuse(operation: str, _: str) -> None:
            if operation == "sync_directory":
                raise OSError(errno.EIO, "Input/output error")

        broker.disk.on_operation = refuse
        with pytest.raises(OSError, match="Input"):
            await broker.retention.run()
        broker.disk.on_operation = None
        assert "a sync failed" in (broker.store.writer.read_only_reason or "")
        # The queue file is kept, because a power cut may restore the segment.
        assert broker.disk.list("consumequeue/T/0")[0] == f"{0:020d}"

    run_until_read_only(test)


def test_consumers_of_removed_messages_continue_at_the_begin_of_the_queue() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        await broker.retention.run()
        answer = broker.pull(broker.connect("c"), queue_offset=3)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "24"
        assert answer.ext_fields["minOffset"] == "24"

    run_with_old_messages(test)


def test_a_read_during_a_removal_skips_no_remaining_message() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker, 6)
        peer = FakePeer()
        assert broker.pull(peer) is None  # the read waits for the device
        expiry = broker.store.expiry
        expiry.remove([expiry.hide_segment()])
        await broker.later.close()

        answer = peer.sent[0]
        assert answer.code == ResponseCode.SUCCESS
        found = decode_messages(answer.body)
        assert [message.queue_offset for message in found] == [3]  # the last of its queue file

    run_with_broker(test, ColdDisk(), config=config())


def test_sends_and_topic_deletions_work_during_a_run() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        run = asyncio.create_task(broker.retention.run())
        await asyncio.sleep(0.35)
        await broker.queue_deletion.delete("T")
        await store(broker, 3)
        await run
        assert (broker.store.reader.min_offset("T", 0), broker.store.reader.max_offset("T", 0)) == (
            0,
            3,
        )

    run_with_old_messages(test)


def test_stop_waits_for_the_file_that_is_being_removed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.retention.request()
        run = asyncio.create_task(broker.retention.run())
        await asyncio.sleep(0.25)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        begin = broker.store.reader.min_position
        assert 0 < begin < 8 * SEGMENT_BYTES
        assert broker.disk.list("commitlog")[0] == f"{begin:020d}"

    run_with_old_messages(test)


def step(broker: SimulatedBroker, ms: int) -> None:
    cast(LoopClock, broker.clock).step(ms)


async def runs(broker: SimulatedBroker, hours: float) -> None:
    """Run the retention on request, as often as a broker does."""
    broker.retention.request()
    for _ in range(int(hours * 6)):
        await broker.retention.run()
        await asyncio.sleep(600)
        broker.retention.request()
    await broker.retention.run()


def test_a_wall_clock_days_ahead_for_some_seconds_removes_nothing() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 15)
        step(broker, 73 * HOUR_MS)
        broker.retention.request()
        await broker.retention.run()
        await store(broker, 3)
        await settle(broker)
        await asyncio.sleep(3)
        await broker.retention.run()
        step(broker, -73 * HOUR_MS)
        await store(broker, 3)
        await settle(broker)
        await runs(broker, 1.5)
        assert segments(broker) == 7

    run_with_broker(test, config=config())


def test_files_that_were_written_while_the_clock_was_ahead_expire_in_time() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        step(broker, 73 * HOUR_MS)
        await store(broker, 9)
        step(broker, -73 * HOUR_MS)
        await store(broker, 9)
        await settle(broker)
        await asyncio.sleep(2 * HOUR_MS / 1000 - 60)
        await runs(broker, 0)
        assert segments(broker) == 6
        await runs(broker, 0.2)
        assert segments(broker) == 1

    run_with_broker(test, config=config())


def test_files_that_were_written_while_the_clock_was_behind_do_not_expire_early() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 9)
        step(broker, -73 * HOUR_MS)
        await store(broker, 9)
        step(broker, 73 * HOUR_MS)
        await store(broker, 3)
        await settle(broker)
        await asyncio.sleep(1.9 * HOUR_MS / 1000)
        await runs(broker, 0)
        assert segments(broker) == 7
        await runs(broker, 0.2)
        assert segments(broker) == 1

    run_with_broker(test, config=config())


def test_a_corrected_wall_clock_applies_after_an_hour() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 9)
        step(broker, 73 * HOUR_MS)
        await store(broker, 1)
        await settle(broker)
        await runs(broker, 0.9)
        assert segments(broker) == 4
        await runs(broker, 0.2)
        assert segments(broker) == 2  # the third was closed late

    run_with_broker(test, config=config())


def test_a_broker_started_with_its_clock_ahead_removes_nothing_for_an_hour() -> None:
    async def before(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 9)
        await settle(broker)

    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 3)
        await settle(broker)
        await runs(broker, 0.9)
        assert segments(broker) == 4
        await runs(broker, 0.2)
        assert segments(broker) == 2  # the third was closed late

    disk = run_with_broker(before, config=config())
    run_with_broker(test, disk, config=config(), later_ms=73 * HOUR_MS)


def test_a_clock_jump_is_remembered_across_restarts() -> None:
    async def before(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await store(broker, 9)
        step(broker, 73 * HOUR_MS)
        await broker.retention.run()
        await store(broker, 3)
        await settle(broker)

    async def test(broker: SimulatedBroker) -> None:
        broker.disk.now_ms = broker.clock.now_ms
        await runs(broker, 0.9)
        assert segments(broker) == 4
        await runs(broker, 0.2)
        assert segments(broker) == 2

    async def after(broker: SimulatedBroker) -> None:
        assert broker.components.age_clock.now_ms() > EPOCH_MS + 73 * HOUR_MS

    disk = run_with_broker(before, config=config())
    run_with_broker(test, disk, config=config(), later_ms=73 * HOUR_MS + 10_000)
    run_with_broker(after, disk, config=config(), later_ms=75 * HOUR_MS)
