"""Delayed messages survive crashes, damage and refusals of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.delays.delay import FAILED_RETRY_MS, FILE_NAME
from kourou.model import properties as names
from kourou.model.topic import SCHEDULE_TOPIC, TopicConfig
from kourou.protocol.record.encode import RecordDraft
from kourou.testing.clock import LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, small_config
from tests.broker.delays.delay_rig import bodies, run, saved_offsets

Life = Callable[[SimulatedBroker], Coroutine[Any, Any, None]]


def named(broker: SimulatedBroker, body: bytes, level: int = 1) -> RecordDraft:
    """Return the draft of a delayed message with a unique id, as clients send it."""
    return broker.draft(body, delay_level=level, properties={names.UNIQ_KEY: body.decode()})


def kill_and_restart(before: Life, after: Life, *, later_ms: int) -> None:
    """Run a broker that delivers, kill it, and run another one on its disk."""

    async def kill() -> None:
        broker = SimulatedBroker(disk)
        await broker.start_deliveries()
        await before(broker)
        broker.abandon()

    disk = SimDisk()
    run_virtual(kill())
    run(after, disk, later_ms=later_ms)


@pytest.mark.parametrize("mode", list(FlushDiskType))
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_around_deliveries_neither_loses_nor_repeats_messages(
    seed: int, mode: FlushDiskType
) -> None:
    async def crash(disk: SimDisk) -> None:
        broker = SimulatedBroker(disk, seed=seed, config=small_config(flush_disk_type=mode))
        await broker.start_deliveries()
        await broker.store_messages([named(broker, b"%d" % n) for n in range(5)])
        # With ASYNC_FLUSH, acknowledged messages are durable after this. The crash then happens
        # around the deliveries.
        await asyncio.sleep(0.9)
        assert broker.store.reader.synced_position == broker.store.reader.written_position
        await asyncio.sleep(0.1 + seed / 500)
        await broker.delay.persist()
        broker.abandon()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(2)
        assert sorted(bodies(broker)) == [b"0", b"1", b"2", b"3", b"4"]

    disk = SimDisk(seed)
    run_virtual(crash(disk))
    disk.crash()
    run(after, disk, later_ms=2_000, flush_disk_type=mode)


def test_kills_repeat_no_delivery_that_the_file_does_not_count() -> None:
    async def kill(disk: SimDisk, life: int) -> None:
        broker = SimulatedBroker(disk, later_ms=life * 10_000)
        await broker.start_deliveries()
        drafts = [named(broker, b"%d-%d" % (life, level), level) for level in (1, 2)]
        unnamed = broker.draft(b"unnamed", delay_level=2)
        await broker.store_messages([*drafts, unnamed] if life == 0 else drafts)
        await asyncio.sleep(5.5)
        if life == 1:
            await broker.delay.persist()
        broker.abandon()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(6)
        once = {b"%d-%d" % (life, level): 1 for life in range(4) for level in (1, 2)}
        assert Counter(bodies(broker)) == once | {b"unnamed": 2}  # it cannot be identified
        assert broker.delay.offsets == {1: 4, 2: 5}

    disk = SimDisk()
    for life in range(4):
        run_virtual(kill(disk, life))
    run(after, disk, later_ms=50_000)


def test_a_kill_after_the_clock_was_set_back_repeats_no_delivery() -> None:
    hour_ms = 3_600_000

    async def kill(disk: SimDisk) -> None:
        broker = SimulatedBroker(disk)
        broker.delay.start()
        clock = cast(LoopClock, broker.clock)
        clock.step(hour_ms)
        await broker.store_messages([named(broker, b"ahead", 2)])
        clock.step(-hour_ms)
        await broker.store_messages([named(broker, b"back", 2)])
        await asyncio.sleep(5.5)
        assert bodies(broker) == [b"ahead", b"back"]
        broker.abandon()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [b"ahead", b"back"]

    disk = SimDisk()
    run_virtual(kill(disk))
    run(after, disk, later_ms=10_000)


def test_a_kill_while_the_clock_was_ahead_repeats_no_delivery() -> None:
    hour_ms = 3_600_000

    async def before(broker: SimulatedBroker) -> None:
        await broker.store_messages([named(broker, b"early", level=6)])
        cast(LoopClock, broker.clock).step(hour_ms)
        await asyncio.sleep(5.5)
        assert bodies(broker) == [b"early"]

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(130)
        assert bodies(broker) == [b"early"]

    kill_and_restart(before, after, later_ms=7_000)


def test_a_kill_soon_after_the_clock_was_set_back_a_little_repeats_no_delivery() -> None:
    async def before(broker: SimulatedBroker) -> None:
        clock = cast(LoopClock, broker.clock)
        clock.step(2_000)
        await broker.store_messages([named(broker, b"early", level=1)])
        clock.step(-2_000)
        await asyncio.sleep(1.5)
        assert bodies(broker) == [b"early"]

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [b"early"]

    kill_and_restart(before, after, later_ms=2_600)


@pytest.mark.parametrize("mode", list(FlushDiskType))
def test_deliveries_found_at_a_start_are_saved_for_the_next(mode: FlushDiskType) -> None:
    config = small_config(flush_disk_type=mode)

    async def live(disk: SimDisk) -> None:
        broker = SimulatedBroker(disk, config=config)
        await broker.start_deliveries()
        await broker.store_messages([named(broker, b"%d" % n) for n in range(5)])
        await asyncio.sleep(1.5)
        broker.abandon()

    async def live_again(disk: SimDisk) -> None:
        broker = SimulatedBroker(disk, config=config, later_ms=3_000)
        await broker.start_deliveries()
        await asyncio.sleep(1.5)
        assert saved_offsets(disk) == {1: 5}
        broker.abandon()

    disk = SimDisk()
    run_virtual(live(disk))
    run_virtual(live_again(disk))


def test_a_message_not_delivered_before_a_kill_is_delivered_after_it() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await broker.store_messages([named(broker, b"first"), named(broker, b"second")])
        await asyncio.sleep(0.5)
        await broker.store_messages([named(broker, b"third")])
        await asyncio.sleep(0.7)
        assert bodies(broker) == [b"first", b"second"]

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"first", b"second", b"third"]

    kill_and_restart(before, after, later_ms=5_000)


def test_second_send_of_a_delivered_message_hides_none_before_it_after_a_kill() -> None:
    async def before(broker: SimulatedBroker) -> None:
        sent_twice = named(broker, b"twice", 2)
        await broker.store_messages([named(broker, b"first", 2), sent_twice])
        await asyncio.sleep(0.5)
        await broker.store_messages([named(broker, b"between", 2), sent_twice])
        await asyncio.sleep(4.7)
        assert bodies(broker) == [b"first", b"twice"]
        await broker.delay.persist()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"first", b"twice", b"between", b"twice"]

    kill_and_restart(before, after, later_ms=6_000)


def test_the_file_is_never_ahead_of_the_log() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        await asyncio.sleep(0.9)
        broker.flusher.stall()
        await asyncio.sleep(0.2)
        assert bodies(broker) == [b"late"]  # written, and with ASYNC_FLUSH visible, but not synced

        assert not await broker.delay.persist()
        assert not broker.disk.exists(FILE_NAME)
        broker.flusher.release()
        await asyncio.sleep(1)
        assert await broker.delay.persist()
        assert saved_offsets(broker.disk) == {1: 1}

    run(test, flush_disk_type=FlushDiskType.ASYNC_FLUSH)


def test_progress_beyond_the_end_after_a_crash_is_set_back() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(FILE_NAME, 0, [b'{"offsetTable":{1:9,2:4}}'])

    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        await asyncio.sleep(1.1)
        assert bodies(broker) == [b"late"]

    assert saved_offsets(run(test, disk)) == {1: 1, 2: 0}


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "T", "REAL_QID": "x"},
        {"REAL_TOPIC": "x" * 128, "REAL_QID": "0"},
        {"REAL_TOPIC": "Nowhere", "REAL_QID": "0"},
        {"REAL_TOPIC": "a\nb", "REAL_QID": "0"},
        {"REAL_TOPIC": "rmq_sys_wheel_timer", "REAL_QID": "0"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_OP_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "TRANS_CHECK_MAX_TIME_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "T", "REAL_QID": "\u0663"},
        {"REAL_TOPIC": "T", "REAL_QID": "1" * 5000},
    ],
)
def test_a_message_without_a_destination_is_skipped(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        lost = broker.draft(b"lost", topic=SCHEDULE_TOPIC, properties=properties | {"DELAY": "0"})
        await broker.store_messages([lost])
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        await asyncio.sleep(1.1)
        assert bodies(broker) == [b"late"]
        assert set(broker.store.reader.queues()) == {SCHEDULE_TOPIC, "T"}

    run(test)

    assert [one.levelname for one in caplog.records if "passed_over" in one.getMessage()] == [
        "ERROR"
    ]


def test_a_message_for_a_removed_queue_goes_to_an_existing_one() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", queue_id=3, delay_level=1)])
        await broker.store_messages([broker.draft(b"far", queue_id=4_001, delay_level=1)])
        broker.topics.put(TopicConfig("T", 2, 2))
        await asyncio.sleep(1.1)
        assert bodies(broker, queue_id=1) == [b"late", b"far"]
        assert broker.store.reader.queues()["T"] == [1]

    run(test)


def test_messages_of_a_deleted_topic_are_skipped_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        for n in range(200):
            await broker.store_messages([broker.draft(b"%d" % n, topic="Gone", delay_level=1)])
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        broker.topics.delete("Gone")
        await asyncio.sleep(1.5)
        assert bodies(broker) == [b"late"]
        assert "Gone" not in broker.store.reader.queues()
        assert broker.delay.offsets == {1: 201}

    run(test)
    reported = [one for one in caplog.records if "delay_level.passed_over" in one.getMessage()]
    assert 1 <= len(reported) <= 30  # and not 200


def test_a_crash_after_a_topic_was_deleted_repeats_no_delivery_after_its_messages() -> None:
    async def before(broker: SimulatedBroker) -> None:
        gone = broker.draft(b"gone", topic="Gone", delay_level=1, properties={"UNIQ_KEY": "gone"})
        await broker.store_messages([gone])
        await broker.store_messages([named(broker, b"late")])
        broker.topics.delete("Gone")
        await asyncio.sleep(1.5)
        assert bodies(broker) == [b"late"]

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"late"]

    kill_and_restart(before, after, later_ms=5_000)


def test_a_kill_after_a_topic_was_created_again_repeats_no_delivery_after_its_messages() -> None:
    async def before(broker: SimulatedBroker) -> None:
        gone = broker.draft(b"gone", topic="Gone", delay_level=1, properties={"UNIQ_KEY": "gone"})
        await broker.store_messages([gone, broker.draft(b"before", topic="Gone")])
        await broker.store_messages([named(broker, b"late")])
        await broker.queue_deletion.delete("Gone")
        broker.topics.delete("Gone")
        await asyncio.sleep(1.5)
        assert bodies(broker) == [b"late"]
        broker.topics.put(TopicConfig("Gone"))
        await broker.topics.persist()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"late"]
        assert broker.delay.offsets == {1: 2}

    kill_and_restart(before, after, later_ms=5_000)


def test_a_kill_repeats_no_delivery_after_a_message_set_aside_for_a_topic_created_again() -> None:
    async def before(broker: SimulatedBroker) -> None:
        gone = broker.draft(b"gone", topic="Gone", delay_level=1, properties={"UNIQ_KEY": "gone"})
        await broker.store_messages([gone, broker.draft(b"before", topic="Gone")])
        await asyncio.sleep(0.5)
        deletion = broker.commit.begin_deletion("Gone")
        assert deletion is not None
        deletion.note()
        await asyncio.sleep(1)
        deletion.forget()
        deletion.remove_files()
        deletion.allow()
        broker.topics.delete("Gone")
        await broker.store_messages([named(broker, b"late", level=5)])
        await asyncio.sleep(61)
        assert bodies(broker) == [b"late"]
        broker.topics.put(TopicConfig("Gone"))
        await broker.topics.persist()

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"late"]
        assert broker.delay.offsets == {1: 1, 5: 2}

    kill_and_restart(before, after, later_ms=65_000)


def test_a_kill_before_a_created_topic_is_saved_repeats_no_delivery_to_it() -> None:
    async def before(broker: SimulatedBroker) -> None:
        clock = cast(LoopClock, broker.clock)
        clock.step(60_000)
        new = broker.draft(b"new", topic="New", delay_level=2, properties={"UNIQ_KEY": "new"})
        await broker.store_messages([new])
        clock.step(-60_000)
        broker.topics.put(TopicConfig("New"))
        await asyncio.sleep(5.5)
        assert bodies(broker, "New") == [b"new"]

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        broker.topics.put(TopicConfig("New"))
        await asyncio.sleep(10)
        assert bodies(broker, "New") == [b"new"]

    kill_and_restart(before, after, later_ms=10_000)


def test_a_message_for_a_topic_that_was_created_again_is_delivered_after_a_kill() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await broker.store_messages([named(broker, b"first")])
        await asyncio.sleep(0.5)
        again = broker.draft(
            b"again", topic="Gone", delay_level=1, properties={"UNIQ_KEY": "again"}
        )
        await broker.store_messages([again, broker.draft(b"before", topic="Gone")])
        await broker.queue_deletion.delete("Gone")
        broker.topics.delete("Gone")
        broker.topics.put(TopicConfig("Gone"))
        await broker.topics.persist()
        await asyncio.sleep(0.7)
        assert bodies(broker) == [b"first"]

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"first"]
        assert bodies(broker, "Gone") == [b"again"]

    kill_and_restart(before, after, later_ms=5_000)


def test_messages_that_are_not_in_memory_are_delivered() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=18)])
        await asyncio.sleep(7_200.1)
        assert bodies(broker) == [b"late"]

    run(test, ColdDisk())


@pytest.mark.parametrize("disk_class", [SimDisk, ColdDisk])
def test_a_damaged_record_blocks_its_level_until_skipping_is_on(
    disk_class: type[SimDisk], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = disk_class()
        broker = SimulatedBroker(disk)
        await broker.start_deliveries()
        for body in (b"early", b"spoilt", b"late"):
            await broker.store_messages([broker.draft(body, delay_level=1)])
        log = f"commitlog/{0:020d}"
        content = disk.read(log, 0, 2000)
        disk.write(log, content.index(b"spoilt"), [b"XXXXXX"])
        await asyncio.sleep(60)
        assert bodies(broker) == [b"early"]
        assert "delay_level.blocked n=1 queue_offset=1" in caplog.text

        broker.live_config.update({"skipDamagedRecords": "true"}, 0)
        await asyncio.sleep(FAILED_RETRY_MS / 1000)
        assert bodies(broker) == [b"early", b"late"]
        assert "message 1 of queue 0 of topic SCHEDULE_TOPIC_XXXX is damaged" in caplog.text
        await broker.stop()

    run_virtual(main())
    assert sum("record.damaged" in one.getMessage() for one in caplog.records) == 1


def test_a_message_read_in_place_of_a_damaged_one_waits_until_it_is_due() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for body in (b"spoilt", b"late"):
            await broker.store_messages([broker.draft(body, delay_level=5)])
            await asyncio.sleep(25)
        log = f"commitlog/{0:020d}"
        at = broker.disk.read(log, 0, 2000).index(b"spoilt")
        broker.disk.write(log, at, [b"XXXXXX"])
        await asyncio.sleep(20)
        assert bodies(broker) == []
        await asyncio.sleep(20)
        assert bodies(broker) == [b"late"]
        broker.disk.write(log, at, [b"spoilt"])  # restored for the final check of the store

    run(test, skip_damaged_records=True)


def test_a_corrupt_due_time_is_replaced_by_that_of_the_record() -> None:
    async def first(broker: SimulatedBroker) -> None:
        for body in (b"one", b"two"):
            await broker.store_messages([broker.draft(body, delay_level=5)])

    async def second(broker: SimulatedBroker) -> None:
        await asyncio.sleep(61)
        assert bodies(broker) == [b"one", b"two"]

    disk = run(first)
    name = f"consumequeue/{SCHEDULE_TOPIC}/4/{0:020d}"
    disk.write(name, 12, [b"\x10"])  # moves the first due time to the far future
    run(second, disk)


def test_a_level_with_a_missing_queue_file_waits_and_continues_when_it_is_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        broker.store.writer.flush(broker.clock.now_ms())
        name = f"consumequeue/{SCHEDULE_TOPIC}/0/{0:020d}"
        broker.disk.rename(name, f"{name}.lost")
        await asyncio.sleep(2)
        assert "delay_level.blocked n=1 queue_offset=0" in caplog.text
        broker.disk.rename(f"{name}.lost", name)
        await asyncio.sleep(FAILED_RETRY_MS / 1000)
        assert bodies(broker) == [b"late"]

    run(test)


def test_a_failed_read_is_retried() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        await asyncio.sleep(0.99)
        broker.disk.fail_after(0, OSError(121, "Remote I/O error"), ["read"])
        await asyncio.sleep(1)
        assert bodies(broker) == []
        await asyncio.sleep(FAILED_RETRY_MS / 1000)
        assert bodies(broker) == [b"late"]

    run(test, ColdDisk())


def test_a_refused_delivery_is_retried() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"%d" % n, delay_level=1) for n in range(3)])
        free_bytes, broker.disk.free = broker.disk.free, 0
        broker.store.writer.flush(broker.clock.now_ms())
        await asyncio.sleep(2)
        assert bodies(broker) == []

        broker.disk.free = free_bytes
        broker.store.writer.flush(broker.clock.now_ms())
        await asyncio.sleep(FAILED_RETRY_MS / 1000)
        assert bodies(broker) == [b"0", b"1", b"2"]

    run(test)


def test_a_busy_store_delays_deliveries_and_repeats_none() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"%d" % n, delay_level=1) for n in range(5)])

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [b"%d" % n for n in range(5)]

    run(after, run(before), later_ms=2_000, pending_requests_max=2)


def test_a_message_without_room_in_the_store_is_not_overtaken() -> None:
    sizes = [200_000, 200_000, 200_000, 1]

    async def before(broker: SimulatedBroker) -> None:
        for size in sizes:
            await broker.store_messages([broker.draft(bytes(size), delay_level=1)])

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert list(map(len, bodies(broker))) == sizes

    small = {"pending_bytes_max": 1 << 19, "pending_connection_bytes_max": 1 << 19}
    run(after, run(before), later_ms=2_000, **small)


@pytest.mark.parametrize("stalled_s", [4.6, 20])
def test_a_slow_disk_gets_each_message_once(stalled_s: float) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        await asyncio.sleep(0.9)
        broker.flusher.stall()
        await asyncio.sleep(stalled_s)
        assert bodies(broker) == []
        broker.flusher.release()
        await asyncio.sleep(20)
        assert bodies(broker) == [b"late"]

    run(test)
