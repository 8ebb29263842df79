"""A broker that is killed soon after a deletion has no offset of the deleted topic or group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kourou.broker.config import FlushDiskType
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.groups import DeleteSubscriptionGroupRequestHeader
from kourou.protocol.topics import DeleteTopicRequestHeader
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig

CONFIG = small_config(flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_ms=500)
OLD = [b"old %d" % number for number in range(5)]
NEW = [b"new 0", b"new 1"]

Consume = Callable[[SimulatedBroker], Awaitable[None]]


async def pull_all(broker: SimulatedBroker) -> None:
    broker.offsets.commit(GROUP, TOPIC, 0, len(OLD))


async def pop_all(broker: SimulatedBroker) -> None:
    rig = PopRig(broker)
    got = await rig.pop()
    assert got.bodies == OLD
    await rig.ack_all(got)


async def pop_all_in_order(broker: SimulatedBroker) -> None:
    rig = PopRig(broker)
    got = await rig.pop(order=True)
    assert got.bodies == OLD
    await rig.ack_all(got)


async def save(broker: SimulatedBroker) -> None:
    broker.commit.flush(broker.clock.now_ms())
    await asyncio.sleep(1)
    assert await broker.offsets.persist()
    await broker.tables.persist()


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("consume", [pull_all, pop_all, pop_all_in_order])
def test_group_begins_at_the_start_of_a_topic_that_was_deleted_and_created_again(
    consume: Consume, *, is_saved: bool
) -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk, config=CONFIG)
        await broker.start_deliveries()
        rig = PopRig(broker)
        await rig.put(*OLD)
        await consume(broker)
        if is_saved:
            await save(broker)
        await rig.put(b"-", topic="other")  # not synced: the file of offsets must wait for it
        header = DeleteTopicRequestHeader(TOPIC)
        answer = await broker.ask(broker.handlers.topics.on_delete_topic, header)
        assert answer.code == 0
        broker.topics.put(TopicConfig(TOPIC, 4, 4))
        await broker.topics.persist()
        await rig.put(*NEW)
        broker.abandon()

        again = SimulatedBroker(disk, config=CONFIG, later_ms=1_000)
        await again.start_deliveries()
        assert not again.offsets.query(GROUP, TOPIC, 0)
        assert (await PopRig(again).pop(order=consume is pop_all_in_order)).bodies == NEW
        await again.stop()

    run_virtual(main())


@pytest.mark.parametrize("consume", [pop_all, pop_all_in_order])
def test_group_that_was_deleted_and_created_again_begins_anew(consume: Consume) -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk, config=CONFIG)
        await broker.start_deliveries()
        await PopRig(broker).put(*OLD)
        await consume(broker)
        header = DeleteSubscriptionGroupRequestHeader(GROUP, clean_offset=True)
        handler = broker.admin.groups.on_delete_subscription_group
        assert (await broker.ask(handler, header)).code == 0
        broker.groups.put(SubscriptionGroup(GROUP))
        await broker.groups.persist()
        broker.abandon()

        again = SimulatedBroker(disk, config=CONFIG, later_ms=1_000)
        await again.start_deliveries()
        assert (await PopRig(again).pop()).bodies == OLD
        await again.stop()

    run_virtual(main())
