"""Pops with the merge buffer (enablePopBufferMerge)."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.popping.pop_config import PopConfig
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.popping.topic_names import revive_topic
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig, batch_of

CONFIG = small_config(pop=PopConfig(enable_pop_buffer_merge=True))


def records(broker: SimulatedBroker) -> int:
    """Return the number of checkpoints and acks that were stored."""
    topic, reader = revive_topic(broker.config.cluster_name), broker.store.reader
    revived = sum(reader.max_offset(topic, queue) for queue in range(8))
    return reader.max_offset(TIMER_TOPIC, 0) + revived


def test_messages_acknowledged_soon_leave_no_record_and_move_the_offset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        first = await rig.pop(max_msg_nums=2, invisible_time=60_000)
        assert first.bodies == [b"a", b"b"]
        second = await rig.pop(invisible_time=60_000)
        assert second.bodies == [b"c"], "it begins after the buffered messages"
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0
        await rig.ack_all(second)
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0, "the first ones are left"
        await rig.batch_ack(batch_of(first, 0b11))
        await asyncio.sleep(60)
        assert broker.offsets.query(GROUP, TOPIC, 0) == 3
        assert records(broker) == 0
        assert (await rig.pop()).bodies == []

    run_with_broker(test, config=CONFIG, is_delivering=True)


def test_messages_that_are_not_acknowledged_are_stored_and_revived() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        first = await rig.pop(invisible_time=30_000)
        await rig.ack(first.handles[0][1], 0)
        await asyncio.sleep(15)
        await rig.ack(first.handles[1][1], 1)
        await asyncio.sleep(16)
        again = await rig.pop()
        assert again.bodies == [b"c"]
        assert broker.offsets.query(GROUP, TOPIC, 0) == 3

    run_with_broker(test, config=CONFIG, is_delivering=True)


def test_changed_message_leaves_the_buffer() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        first = await rig.pop(invisible_time=60_000)
        await rig.change(first.handles[0][1], 0, 1_000)
        await asyncio.sleep(3)
        assert (await rig.pop()).bodies == [b"a"]
        await asyncio.sleep(70)
        assert broker.offsets.query(GROUP, TOPIC, 0) == 1

    run_with_broker(test, config=CONFIG, is_delivering=True)


def test_short_invisible_times_are_stored_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.pop(max_msg_nums=1, invisible_time=60_000)
        await rig.pop(max_msg_nums=1, invisible_time=2_000)
        await asyncio.sleep(4)
        assert (await rig.pop()).bodies == [b"b"]
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0

    run_with_broker(test, config=CONFIG, is_delivering=True)


@pytest.mark.parametrize("is_killed", [True, False])
def test_no_message_is_lost_by_a_restart(*, is_killed: bool) -> None:
    disk = SimDisk()
    ended: list[int] = []

    async def before() -> None:
        broker = SimulatedBroker(disk, config=CONFIG)
        await broker.start_deliveries()
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        await rig.pop(max_msg_nums=1, invisible_time=30_000)
        await rig.pop(max_msg_nums=1, invisible_time=2_000)
        await broker.topics.persist()
        ended.append(broker.clock.now_ms() - EPOCH_MS)
        if is_killed:
            broker.abandon()
        else:
            await broker.stop()

    async def after() -> None:
        broker = SimulatedBroker(disk, config=CONFIG, later_ms=ended[0] + 1_000)
        await broker.start_deliveries()
        rig = PopRig(broker)
        bodies: set[bytes] = set()
        for _ in range(20):
            got = await rig.pop(invisible_time=60_000)
            await rig.ack_all(got)
            bodies.update(got.bodies)
            await asyncio.sleep(3)
        assert bodies == {b"a", b"b", b"c"}
        await broker.stop()

    run_virtual(before())
    run_virtual(after())
