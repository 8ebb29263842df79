"""A restarted broker has the order infos and the offsets of its ordered pops."""

from __future__ import annotations

from kourou.broker.popping.order_info import OrderBlock, OrderedPop, OrderedQueue
from kourou.broker.popping.order_table import FILE_NAME
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.popping.order_file import decode_order_info_table
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker

Q = OrderedQueue("T", "g", 0)


async def pop_and_ack(broker: SimulatedBroker) -> int:
    """Pop ten messages, acknowledge the first four as a handler does, and return the pop time."""
    broker.topics.ensure(TopicConfig("T", 1, 1))
    await broker.store_messages([broker.draft(topic="T") for _ in range(10)])
    now_ms = broker.clock.now_ms()
    table = broker.tables.order_infos
    broker.offsets.commit(Q.group, Q.topic, Q.queue_id, 0)
    table.infos.add_pop(Q, OrderedPop(range(10), now_ms, 60_000), now_ms)
    await table.save()
    for offset in range(4):
        committed = broker.offsets.query(Q.group, Q.topic, Q.queue_id)
        found = table.infos.ack(Q, offset, now_ms, committed, now_ms)
        assert found.commit_offset == offset + 1
        broker.offsets.commit(Q.group, Q.topic, Q.queue_id, found.commit_offset)
        await table.save()
    return now_ms


def test_kill_before_the_offsets_are_saved_redelivers_nothing_acknowledged() -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk)
        broker.offsets.commit(Q.group, Q.topic, Q.queue_id, 0)
        await broker.tables.persist()
        popped_at_ms = await pop_and_ack(broker)
        broker.abandon()
        again = SimulatedBroker(disk, later_ms=10_000)
        assert again.offsets.query(Q.group, Q.topic, Q.queue_id) == 4
        end_ms = popped_at_ms + 60_000
        infos = again.tables.order_infos.infos
        assert infos.block(Q, again.clock.now_ms()) == OrderBlock(4, end_ms, end_ms)
        await again.stop()

    run_virtual(main())


def test_offset_that_was_set_back_and_saved_stays_there_after_a_kill() -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk)
        await pop_and_ack(broker)
        broker.offsets.commit(Q.group, Q.topic, Q.queue_id, 1)  # by the request of a client
        await broker.tables.persist()
        broker.abandon()
        again = SimulatedBroker(disk)
        assert again.offsets.query(Q.group, Q.topic, Q.queue_id) == 1
        await again.stop()

    run_virtual(main())


def test_kill_before_the_first_save_of_a_group_keeps_its_offset() -> None:
    # Otherwise a group that begins at the end of a queue would skip what is not acknowledged.
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk)
        await pop_and_ack(broker)
        broker.abandon()
        again = SimulatedBroker(disk)
        assert again.offsets.query(Q.group, Q.topic, Q.queue_id) == 4
        await again.stop()

    run_virtual(main())


def test_messages_lost_by_a_power_cut_leave_no_block() -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk)
        await pop_and_ack(broker)
        now_ms = broker.clock.now_ms()
        infos = broker.tables.order_infos.infos
        infos.add_pop(Q, OrderedPop([9, 10, 11], now_ms, 60_000), now_ms)
        await broker.tables.order_infos.save()
        broker.abandon()
        again = SimulatedBroker(disk)
        assert again.tables.order_infos.infos.block(Q, now_ms) is None
        assert again.offsets.query(Q.group, Q.topic, Q.queue_id) == 9
        await again.stop()

    run_virtual(main())


def test_infos_of_a_deleted_topic_expire_within_a_minute() -> None:
    async def main() -> None:
        disk = SimDisk()
        broker = SimulatedBroker(disk)
        broker.groups.put(SubscriptionGroup("g"))
        await pop_and_ack(broker)
        await broker.tables.expire_order_infos()
        await broker.tables.persist()
        text = disk.read(FILE_NAME, 0, disk.size(FILE_NAME))
        assert [*decode_order_info_table(text).table] == ["T@g"]
        broker.topics.delete("T")
        await broker.tables.expire_order_infos()
        await broker.tables.persist()
        text = disk.read(FILE_NAME, 0, disk.size(FILE_NAME))
        assert decode_order_info_table(text).table == {}
        await broker.stop()

    run_virtual(main())
