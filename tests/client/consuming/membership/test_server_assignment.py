"""Consumers whose queues are assigned by brokers."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import ConfigError
from kourou.model.group import MessageModel
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.topic import retry_topic
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

BODIES = [b"%d" % number for number in range(24)]


def owned(consumer: PushConsumer) -> list[tuple[str, int]]:
    return [(one.broker_name, one.queue_id) for one in consumer.queues if one.topic == TOPIC]


@pytest.mark.parametrize("allocation", ["AVG", "AVG_BY_CIRCLE"])
def test_brokers_assign_the_queues_of_all_brokers(allocation: str) -> None:
    async def main() -> None:
        async with recording(brokers=2, queues=3) as w:
            members = [
                w.consumer(
                    client_rebalance=False, allocation=allocation, instance_name=f"m{number}"
                )
                for number in range(2)
            ]
            async with members[0], members[1]:
                await asyncio.sleep(45)
                assert [len(owned(member)) for member in members] == [3, 3]
                assert not set(owned(members[0])) & set(owned(members[1]))
                await w.send(*BODIES)
                await w.until_received(*BODIES)
                assert sorted(w.received) == sorted(BODIES)

    run_virtual(main())


def test_the_queues_of_a_leaving_member_are_assigned_to_the_other() -> None:
    async def main() -> None:
        async with recording() as w:
            stays = w.consumer(client_rebalance=False, instance_name="a")
            leaves = w.consumer(client_rebalance=False, instance_name="b")
            async with stays:
                async with leaves:
                    await w.until(lambda: (len(owned(stays)), len(owned(leaves))) == (2, 2))
                await w.until(lambda: len(owned(stays)) == 4)
                assert sorted(owned(stays)) == [("broker-0", number) for number in range(4)]

    run_virtual(main())


def test_failed_messages_are_redelivered_with_server_assignment() -> None:
    async def main() -> None:
        async with recording() as w:

            def fail_once(_: object) -> None:
                if w.received.count(w.received[-1]) == 1:
                    raise ValueError("once")

            async with w.consumer(fail_once, client_rebalance=False):
                await w.send(b"1", b"2")
                await w.until_received(b"1", b"1", b"2", b"2")
                assert sorted(w.received) == [b"1", b"1", b"2", b"2"]

    run_virtual(main())


def test_members_keep_their_queues_while_a_broker_is_unreachable() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer(client_rebalance=False)
            async with consumer:
                assert len(owned(consumer)) == 4
                await w.cluster.kill_broker()
                await asyncio.sleep(100)
                assert len(owned(consumer)) == 4
                await w.cluster.restart_broker()
                await w.send(*BODIES)
                await w.until_received(*BODIES)

    run_virtual(main())


def test_members_keep_their_queues_when_a_broker_restarts() -> None:
    async def main() -> None:
        async with recording() as w:
            members = [w.consumer(client_rebalance=False, instance_name=name) for name in "ab"]
            changes: list[list[MessageQueue]] = []
            async with members[0], members[1]:
                await w.until(lambda: [len(owned(member)) for member in members] == [2, 2])
                await asyncio.sleep(5)
                for member in members:
                    member.on_queues_changed(lambda _, __, held: changes.append(held))
                await w.cluster.crash_broker()
                await w.cluster.restart_broker()
                await asyncio.sleep(120)
                assert changes == []

    run_virtual(main())


def test_messages_left_from_earlier_pops_are_consumed() -> None:
    async def main() -> None:
        async with recording() as w:
            retries = f"{retry_topic('consumers')}_{TOPIC}"
            async with w.cluster.admin() as admin, w.cluster.producer() as producer:
                await admin.create_topic(retries, queues=1)
                await producer.send(Message(retries, b"left"))
            async with w.consumer(client_rebalance=False) as consumer:
                await w.until_received(b"left")
                assert w.received == [b"left"]
                consumer.unsubscribe(TOPIC)
                await w.until(
                    lambda: {one.topic for one in consumer.queues} == {retry_topic("consumers")}
                )

    run_virtual(main())


def test_a_broadcasting_member_holds_all_queues_without_client_rebalance() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer(client_rebalance=False, message_model=MessageModel.BROADCASTING)
            async with consumer:
                assert len(owned(consumer)) == 4

    run_virtual(main())


def test_a_strategy_that_brokers_do_not_support_is_refused() -> None:
    for allocation in ("CONSISTENT_HASH", lambda queues, _, __: queues):
        with pytest.raises(ConfigError, match="brokers support only AVG and AVG_BY_CIRCLE"):
            PushConsumerConfig(allocation=allocation, client_rebalance=False)
