"""A kill while the timer delivers checkpoints and acks: the next start decides as the last did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

import pytest

from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.popping.topic_names import REVIVE_GROUP, revive_topic
from kourou.protocol.record.encode import draft_from_record
from kourou.protocol.record.layout import without_seal
from kourou.protocol.record.read import read_record
from kourou.store.timer.timer_record import due_timer_draft, read_timer_record
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import ColdDisk, SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import Got, PopRig

P = ParamSpec("P")
T = TypeVar("T")
Life = Callable[[SimulatedBroker], Coroutine[Any, Any, None]]


def run_lives(*lives: Life, gap_ms: int = 100) -> None:
    """Run a broker for each life on one disk; all but the last one are killed.

    Args:
        lives: called with each broker.
        gap_ms: time between two lives by the wall clock; negative if it is set back meanwhile.
    """
    disk = SimDisk()
    later_ms = 0
    for number, life in enumerate(lives):
        ended_ms = run_virtual(run_life(disk, life, later_ms, is_last=number == len(lives) - 1))
        later_ms = ended_ms + gap_ms


async def run_life(disk: SimDisk, life: Life, later_ms: int, *, is_last: bool) -> int:
    """Run one life; return the wall-clock time at its end, in ms since `EPOCH_MS`."""
    broker = SimulatedBroker(disk, later_ms=later_ms)
    await broker.start_deliveries()
    await broker.topics.persist()
    await life(broker)
    ended_ms = broker.clock.now_ms() - EPOCH_MS
    if is_last:
        await broker.stop()
    else:
        broker.abandon()
    return ended_ms


@pytest.mark.parametrize("lives", [2, 3])
def test_message_acknowledged_after_its_checkpoint_was_copied_does_not_come_back(
    lives: int,
) -> None:
    async def acknowledge(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        popped: Got = await rig.pop(invisible_time=5_000)
        await broker.tables.persist()
        await broker.timers.storage.flush()
        await asyncio.sleep(4.2)  # the timer copies a checkpoint a second before its time
        await rig.ack_all(popped)

    async def kill_again(broker: SimulatedBroker) -> None:
        await asyncio.sleep(3)
        await broker.commit.put_and_wait([broker.draft(b"c", queue_id=1)], broker.clock.now_ms())
        await broker.timers.storage.flush()

    async def pop(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert set((await PopRig(broker).pop()).bodies) <= {b"c"}

    # With the clock set back, the messages in flight are known when the checkpoint is due again.
    run_lives(acknowledge, *[kill_again] * (lives - 2), pop, gap_ms=-500)


@pytest.mark.parametrize("lives", [2, 3])
def test_message_whose_ack_overtook_its_checkpoint_does_not_come_back_after_a_kill(
    lives: int,
) -> None:
    async def overtake(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        popped: Got = await rig.pop(invisible_time=5_000)
        await broker.timers.storage.flush()
        await rig.ack_all(popped)
        reader = broker.store.reader
        entry = reader.entry(TIMER_TOPIC, 0, reader.max_offset(TIMER_TOPIC, 0) - 1)
        assert entry is not None
        ack = read_timer_record(reader.read_record(entry.physical_offset) or b"")
        now_ms = broker.clock.now_ms()
        draft, _ = due_timer_draft(ack, now_ms, now_ms, is_roll=False)
        await broker.store_messages([draft])
        await asyncio.sleep(7)
        topic, queue_id = revive_topic(broker.config.cluster_name), popped.header.revive_qid
        assert reader.max_offset(topic, queue_id) == 1  # the checkpoint was left out
        await broker.commit.put_and_wait([broker.draft(b"c", queue_id=1)], now_ms)
        while not broker.tables.offsets.query(REVIVE_GROUP, topic, queue_id):
            await rig.pop(invisible_time=1)
            await asyncio.sleep(0.5)
        await broker.tables.persist()

    async def kill_again(broker: SimulatedBroker) -> None:
        await asyncio.sleep(3)
        await broker.tables.persist()

    async def pop(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert set((await PopRig(broker).pop()).bodies) <= {b"c"}

    run_lives(overtake, *[kill_again] * (lives - 2), pop)


def test_message_that_was_revived_before_a_kill_is_not_in_flight_after_it() -> None:
    async def revive(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.pop(invisible_time=5_000)
        await asyncio.sleep(1)
        await broker.timers.storage.flush()
        await asyncio.sleep(5)
        await broker.tables.persist()
        assert broker.components.popping.in_flight.message_count == 0

    async def count(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert broker.components.popping.recovery.is_complete
        assert broker.components.popping.in_flight.message_count == 0
        assert sorted((await PopRig(broker).pop()).bodies) == [b"a", b"b"]

    run_lives(revive, count)


def run_while_recovering(
    life: Life,
    popped: list[Got],
    may_read: asyncio.Event,
    *,
    disk: SimDisk | None = None,
    invisible_ms: int = 5_000,
    after_read: Callable[[object], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run a broker that does not know all messages in flight until `may_read` is set.

    A broker before it has popped two messages, which is added to `popped`, and was killed.

    Args:
        life: called with the broker.
        popped: gets the first pop.
        may_read: as above.
        disk: None for a new one.
        invisible_ms: of the first pop.
        after_read: called with the first argument of each call off the loop, after it.
    """
    disk = disk or SimDisk()

    async def pop(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        popped.append(await rig.pop(invisible_time=invisible_ms))
        await asyncio.sleep(1)
        await broker.timers.storage.flush()

    async def offload(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = function(*args, **kwargs)
        if getattr(function, "__qualname__", "") == "InFlightRecovery._read":
            await may_read.wait()
        if after_read is not None and args:
            await after_read(args[0])
        return result

    ended_ms = run_virtual(run_life(disk, pop, 0, is_last=False))
    run_with_broker(life, disk, is_delivering=True, later_ms=ended_ms, offload=offload)


def test_message_acknowledged_while_the_messages_in_flight_are_read_is_not_in_flight() -> None:
    popped, may_read = list[Got](), asyncio.Event()

    async def acknowledge(broker: SimulatedBroker) -> None:
        popping = broker.components.popping
        await asyncio.sleep(1)
        assert not popping.recovery.is_complete
        await PopRig(broker).ack_all(popped[0])
        may_read.set()
        await popping.recovery.wait()
        await asyncio.sleep(0.1)
        assert popping.in_flight.message_count == 0
        await asyncio.sleep(8)
        assert (await PopRig(broker).pop()).bodies == []

    run_while_recovering(acknowledge, popped, may_read)


def test_message_revived_while_the_messages_in_flight_are_read_is_not_in_flight() -> None:
    popped, may_read = list[Got](), asyncio.Event()

    async def change(broker: SimulatedBroker) -> None:
        popping, rig = broker.components.popping, PopRig(broker)
        await asyncio.sleep(6)
        assert not popping.recovery.is_complete
        again = await rig.pop(invisible_time=60_000)
        assert again.bodies == [b"a", b"b"]
        may_read.set()
        await popping.recovery.wait()
        await asyncio.sleep(0.1)
        assert popping.in_flight.message_count == 2  # of the second pop
        for offset, handle in popped[0].handles:
            assert (await rig.change(handle, offset, 1_000)).code == 0
        await rig.ack_all(again)
        await asyncio.sleep(8)
        assert (await rig.pop()).bodies == []

    run_while_recovering(change, popped, may_read)


def test_message_that_was_due_before_the_clock_was_set_back_is_not_revived_after_its_ack() -> None:
    may_recover, may_read, is_reading = [asyncio.Event() for _ in range(3)]

    async def hold_revive_records(topic: object) -> None:
        if str(topic).startswith("rmq_sys_REVIVE_LOG"):
            is_reading.set()
            await may_read.wait()

    async def acknowledge(broker: SimulatedBroker) -> None:
        popping, rig = broker.components.popping, PopRig(broker)
        await rig.put(b"b", b"c")
        got = await rig.pop(invisible_time=20_000)
        assert got.bodies == [b"b", b"c"]
        clock = cast(LoopClock, broker.clock)
        clock.step(3_600_000)
        await is_reading.wait()
        clock.step(-3_600_000)
        await rig.ack_all(got)
        may_read.set()
        await asyncio.sleep(5)
        assert not popping.recovery.is_complete
        may_recover.set()
        await popping.recovery.wait()
        await asyncio.sleep(10)
        assert (await rig.pop()).bodies == []

    run_while_recovering(
        acknowledge,
        [],
        may_recover,
        disk=ColdDisk(),
        invisible_ms=60_000,
        after_read=hold_revive_records,
    )


def test_second_copy_of_a_checkpoint_revives_nothing() -> None:
    async def copy(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        got = await rig.pop(invisible_time=5_000)
        await asyncio.sleep(5.5)
        topic, queue_id = revive_topic(broker.config.cluster_name), got.header.revive_qid
        entry = broker.store.reader.entry(topic, queue_id, 0)
        assert entry is not None
        record = broker.store.reader.read_record(entry.physical_offset)
        assert record is not None
        header = read_record(record, check_crc=False)
        text = without_seal(header.properties(record))
        await broker.store_messages([draft_from_record(record, header, topic, queue_id, text)])
        await asyncio.sleep(2)
        assert broker.store.reader.max_offset(topic, queue_id) == 2
        assert (await rig.pop()).bodies == [b"a"]

    run_lives(copy)
