"""A deleted group or topic takes its popped messages and its pop retry topics along."""

from __future__ import annotations

import asyncio

import pytest

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig, retry_topic
from kourou.protocol.command import RemotingCommand
from kourou.protocol.groups import DeleteSubscriptionGroupRequestHeader
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.protocol.topics import DeleteTopicRequestHeader
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig

INVISIBLE_MS = 10_000


async def delete_group(broker: SimulatedBroker, group: str = GROUP) -> RemotingCommand:
    header = DeleteSubscriptionGroupRequestHeader(group, clean_offset=True)
    return await broker.ask(broker.admin.groups.on_delete_subscription_group, header)


async def delete_topic(broker: SimulatedBroker, topic: str) -> RemotingCommand:
    handler = broker.handlers.topics.on_delete_topic
    return await broker.ask(handler, DeleteTopicRequestHeader(topic))


async def revive_one(broker: SimulatedBroker, topic: str = TOPIC, group: str = GROUP) -> None:
    """Have one message of a topic in the group's retry topic, which is created."""
    rig = PopRig(broker)
    await rig.put(b"old", topic=topic)
    await rig.pop(topic=topic, consumer_group=group)
    await asyncio.sleep(INVISIBLE_MS / 1000 + 2)
    assert broker.store.reader.max_offset(retry_topic_v1(group, topic), 0) == 1


def test_deleted_group_leaves_no_retry_topics_of_either_name() -> None:
    v1, v2 = retry_topic_v1(GROUP, TOPIC), retry_topic_v2(GROUP, TOPIC)

    async def test(broker: SimulatedBroker) -> None:
        await revive_one(broker)
        broker.topics.put(TopicConfig(v2, 1, 1))
        broker.offsets.commit(GROUP, v2, 0, 0)
        assert (await delete_group(broker)).code == 0
        assert broker.topics.get(v1) is broker.topics.get(v2) is None
        assert broker.store.reader.max_offset(v1, 0) == 0
        assert broker.offsets.groups_of(v1) == []
        saved = broker.disk.read("config/topics.json", 0, 1 << 20).decode()
        assert v1 not in saved
        assert v2 not in saved
        assert broker.topics.get(TOPIC) is not None

    run_with_broker(test, is_delivering=True)


def test_messages_in_flight_of_a_deleted_group_are_not_delivered_to_a_new_one() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.pop()
        await delete_group(broker)
        assert broker.components.popping.in_flight.counts() == {}
        broker.groups.put(SubscriptionGroup(GROUP))
        await asyncio.sleep(INVISIBLE_MS / 1000 + 2)
        assert broker.topics.get(retry_topic_v1(GROUP, TOPIC)) is None

    run_with_broker(test, is_delivering=True)


def test_messages_in_flight_of_a_deleted_group_are_not_counted_after_a_restart() -> None:
    async def pop_and_delete(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        await rig.pop(invisible_time=60_000)
        await rig.pop_later(consumer_group="other", invisible_time=60_000)
        await delete_group(broker)

    async def count(broker: SimulatedBroker) -> None:
        await asyncio.sleep(5)
        assert broker.components.popping.in_flight.counts() == {(TOPIC, "other", 0): 2}

    disk = run_with_broker(pop_and_delete, is_delivering=True)
    run_with_broker(count, disk, is_delivering=True, later_ms=10_000)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("popped_s", [0, 9.5])
def test_messages_in_flight_of_a_deleted_group_do_not_come_to_its_successor_after_a_restart(
    popped_s: float, *, is_killed: bool
) -> None:
    """The checkpoint is in the timer at the restart, or in the revive queue."""

    async def pop_and_delete(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await broker.topics.persist()
        await rig.put(b"a", b"b")
        await rig.pop()
        await asyncio.sleep(popped_s)
        await delete_group(broker)
        broker.groups.put(SubscriptionGroup(GROUP))
        assert (await rig.pop(invisible_time=60_000)).bodies == [b"a", b"b"]
        await broker.tables.persist()

    async def main() -> None:
        broker = SimulatedBroker(disk)
        await broker.start_deliveries()
        await pop_and_delete(broker)
        broker.abandon()

    async def wait(broker: SimulatedBroker) -> None:
        retry_topic = retry_topic_v1(GROUP, TOPIC)
        await asyncio.sleep(INVISIBLE_MS / 1000 + 5)
        assert broker.store.reader.max_offset(retry_topic, 0) == 0
        assert broker.components.popping.in_flight.message_count == 2
        await asyncio.sleep(50)
        assert broker.store.reader.max_offset(retry_topic, 0) == 2

    disk = SimDisk()
    if is_killed:
        run_virtual(main())
    else:
        run_with_broker(pop_and_delete, disk, is_delivering=True)
    run_with_broker(wait, disk, is_delivering=True, later_ms=int(popped_s * 1000) + 100)


def test_checkpoint_that_waits_for_its_time_is_not_revived_for_a_new_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a")
        await rig.pop()
        await asyncio.sleep(INVISIBLE_MS / 1000 - 0.5)  # it was read from the revive queue
        await delete_group(broker)
        broker.groups.put(SubscriptionGroup(GROUP))
        await asyncio.sleep(2)
        assert broker.topics.get(retry_topic_v1(GROUP, TOPIC)) is None

    run_with_broker(test, is_delivering=True)


def test_messages_in_flight_of_a_deleted_topic_do_not_come_to_its_successor() -> None:
    async def pop_and_delete(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"old 0", b"old 1")
        await rig.pop()
        await delete_topic(broker, TOPIC)
        broker.topics.put(TopicConfig(TOPIC, 4, 4))
        await rig.put(b"new 0", b"new 1")

    async def wait(broker: SimulatedBroker) -> None:
        await asyncio.sleep(INVISIBLE_MS / 1000 + 2)
        assert broker.topics.get(retry_topic_v1(GROUP, TOPIC)) is None
        assert broker.components.popping.in_flight.message_count == 0
        assert (await PopRig(broker).pop()).bodies == [b"new 0", b"new 1"]

    disk = run_with_broker(pop_and_delete, is_delivering=True)
    run_with_broker(wait, disk, is_delivering=True, later_ms=1_000)


def test_order_infos_end_with_their_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        assert (await rig.pop(order=True, max_msg_nums=1)).bodies == [b"a"]
        assert (await rig.pop(order=True)).bodies == []
        await delete_group(broker)
        broker.groups.put(SubscriptionGroup(GROUP))
        assert (await rig.pop(order=True)).bodies == [b"a", b"b"]

    run_with_broker(test, is_delivering=True)


def test_retry_topic_that_another_group_uses_is_kept() -> None:
    shared = retry_topic_v1("a", "b_c")

    async def test(broker: SimulatedBroker) -> None:
        assert shared == retry_topic_v1("a_b", "c")
        for topic in ("b_c", "c"):
            broker.topics.put(TopicConfig(topic, 1, 1))
        await revive_one(broker, "b_c", "a")
        broker.offsets.commit("a_b", shared, 0, 0)
        await delete_group(broker, "a")
        assert broker.topics.get(shared) is not None
        broker.offsets.commit("a", "b_c", 0, 1)
        await delete_topic(broker, "b_c")
        assert broker.topics.get(shared) is not None
        await delete_group(broker, "a_b")
        assert broker.topics.get(shared) is None

    run_with_broker(test, is_delivering=True)


def test_retry_topic_of_a_group_with_a_longer_name_is_kept() -> None:
    async def test(broker: SimulatedBroker) -> None:
        longer = f"{GROUP}_{TOPIC}"
        broker.groups.put(SubscriptionGroup(longer))
        broker.topics.put(TopicConfig(retry_topic(longer), 1, 1))
        broker.groups.put(SubscriptionGroup(GROUP))
        await delete_group(broker)
        assert broker.topics.get(retry_topic(longer)) is not None

    run_with_broker(test, is_delivering=True)


def test_deleted_topic_takes_retry_topics_and_messages_in_flight_along() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await revive_one(broker)
        await rig.put(b"new")
        await rig.pop()
        assert broker.components.popping.in_flight.message_count
        assert (await delete_topic(broker, TOPIC)).code == 0
        assert broker.topics.get(retry_topic_v1(GROUP, TOPIC)) is None
        assert broker.components.popping.in_flight.counts() == {}
        assert broker.offsets.topics_of(GROUP) == []

    run_with_broker(test, is_delivering=True)


def test_failed_deletion_of_a_retry_topic_is_reported_and_can_be_repeated() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await revive_one(broker)
        broker.disk.fail_after(0, OSError(28, "No space left on device"))
        answer = await delete_group(broker)
        assert answer.code != 0
        assert retry_topic_v1(GROUP, TOPIC) in (answer.remark or "")
        assert (await delete_group(broker)).code == 0
        assert broker.topics.get(retry_topic_v1(GROUP, TOPIC)) is None

    run_with_broker(test, is_delivering=True)
