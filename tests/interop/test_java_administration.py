"""Tests of Kourou's administration of a Java broker: queries and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.client.administration.admin import AdminClient
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.model.group import ConsumeFromWhere, SubscriptionGroup
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import LanguageCode
from kourou.protocol.running_info import ConsumeResult
from tests.interop.peer import JavaServer

COUNT = 6
WAIT_S = 30.0


def administer(
    server: JavaServer, body: Callable[[AdminClient], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), AdminClient(server.namesrv_addr) as admin:
            # The broker listens before it registers.
            while not (await admin.cluster_info()).brokers:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            await body(admin)

    asyncio.run(main())


async def send(server: JavaServer, topic: str, count: int) -> None:
    async with Producer("administered", server.namesrv_addr) as producer:
        for _ in range(count):
            await producer.send(Message(topic, b"x"))


def consumer_of(
    server: JavaServer, group: str, topic: str, received: asyncio.Queue[MessageExt]
) -> PushConsumer:
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(group, server.namesrv_addr, config=config)
    consumer.subscribe(topic)
    consumer.listen(received.put)
    return consumer


async def until_received(received: asyncio.Queue[MessageExt], count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        for _ in range(count):
            await received.get()


def test_group_is_described_reset_and_queried_with_and_without_members(
    java_server: JavaServer,
) -> None:
    async def body(admin: AdminClient) -> None:
        topic, group = "AdminMoves", "admin_moves"
        await admin.create_topic(topic, queues=1)
        await send(java_server, topic, COUNT)
        received: asyncio.Queue[MessageExt] = asyncio.Queue()
        async with consumer_of(java_server, group, topic, received) as consumer:
            await until_received(received, COUNT)
            found = await admin.consumer_connection(group)
            assert [one.client_id for one in found.connections] == [consumer.client_id]
            assert found.connections[0].language is LanguageCode.PYTHON
            info = await admin.running_info(group, consumer.client_id)
            assert topic in {queue.topic for queue in info.queues}
            await admin.reset_offset(group, topic, to="earliest")
            await until_received(received, COUNT)
        moves = await admin.reset_offset(group, topic, to="earliest")
        assert [(move.old_offset, move.new_offset) for move in moves] == [(COUNT, 0)]
        assert (await admin.describe_group(group)).lag == COUNT
        one = MessageQueue(topic, "broker-a", 0)
        await admin.reset_offset(group, topic, queue=one, offset=2)
        assert (await admin.consume_stats(group, topic)).offsets[one].consumer_offset == 2
        await admin.clone_offsets(group, "admin_twins", topic)
        assert (await admin.consume_stats("admin_twins", topic)).offsets[one].consumer_offset == 2
        await admin.skip_backlog(group, topic)
        assert (await admin.describe_group(group)).lag == 0

    administer(java_server, body)


def test_reset_that_the_broker_only_forwards_is_completed(
    java_server: JavaServer,
) -> None:
    async def body(admin: AdminClient) -> None:
        topic, group = "AdminOldMoves", "admin_old_moves"
        await admin.create_topic(topic, queues=1)
        await send(java_server, topic, COUNT)
        await admin.create_group(SubscriptionGroup(group))
        broker = java_server.broker_addr
        await admin.update_broker_config(broker, {"useServerSideResetOffset": "false"})
        try:
            moves = await admin.skip_backlog(group, topic)
        finally:
            await admin.update_broker_config(broker, {"useServerSideResetOffset": "true"})
        assert [move.new_offset for move in moves] == [COUNT]
        assert (await admin.describe_group(group)).lag == 0

    administer(java_server, body)


def test_group_is_created_changed_and_deleted(java_server: JavaServer) -> None:
    async def body(admin: AdminClient) -> None:
        group = SubscriptionGroup("admin_made", retry_max_times=3, consume_enable=False)
        await admin.create_group(group)
        assert (await admin.group_config("admin_made"))["broker-a"] == group
        await admin.update_group("admin_made", consume_enable=True)
        changed = (await admin.group_config("admin_made"))["broker-a"]
        assert (changed.retry_max_times, changed.consume_enable) == (3, True)
        await admin.delete_group("admin_made", clean_offsets=True)
        assert "admin_made" not in [one.group_name for one in await admin.group_list()]

    administer(java_server, body)


def test_broker_reports_its_runtime_groups_and_clients(java_server: JavaServer) -> None:
    async def body(admin: AdminClient) -> None:
        topic, group = "AdminReads", "admin_reads"
        broker = java_server.broker_addr
        await admin.create_topic(topic, queues=1)
        received: asyncio.Queue[MessageExt] = asyncio.Queue()
        async with (
            consumer_of(java_server, group, topic, received),
            Producer("admin_producers", java_server.namesrv_addr) as producer,
        ):
            await producer.send(Message(topic, b"x"))
            message = await asyncio.wait_for(received.get(), WAIT_S)
            assert (await admin.producers(broker))["admin_producers"]
            (one,) = await admin.producer_connection("admin_producers", topic)
            assert one.client_id == producer.client_id
            (member,) = (await admin.consumer_connection(group)).connections
            again = await admin.consume_directly(group, member.client_id, message.offset_msg_id)
            assert again.consume_result is ConsumeResult.SUCCESS
            await until_received(received, 1)
        assert (await admin.runtime_info(broker))["brokerVersionDesc"] == "V5_5_0"
        assert (await admin.broker_config(broker))["brokerName"] == "broker-a"
        assert group in (await admin.broker_consume_stats(broker)).stats
        (row,) = await admin.all_stats([topic])
        assert (row.topic, row.group, row.lag) == (topic, group, 0)

    administer(java_server, body)
