"""Administration with a namespace: plain names, limited to the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kourou.client.administration.admin import AdminClient, Redrive
from kourou.client.config import AdminConfig, ProducerConfig
from kourou.client.consuming.acknowledging.redelivery import DeadLetter
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere, SubscriptionGroup
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.offsets import GetConsumerStatusRequestHeader, decode_consumer_status
from kourou.protocol.queue_assignment import MessageRequestMode
from kourou.protocol.running_info import ConsumeResult
from kourou.testing.inspection import server_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

NS = "ns"
GROUP = "billing"
INSIDE = f"{NS}%{TOPIC}"
QUEUE = MessageQueue(TOPIC, "broker-0", 0)


def admin_within(w: Recording) -> AdminClient:
    config, cluster = AdminConfig(namespace=NS), w.cluster
    return AdminClient(cluster.namesrv_addr, config=config, runtime=cluster.runtime)


def member(w: Recording, listener: Any = None, **options: Any) -> PushConsumer:
    """Return a consumer with the namespace."""
    config = PushConsumerConfig(
        namespace=NS, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options
    )
    consumer = w.cluster.push_consumer(GROUP, config)
    consumer.subscribe(TOPIC)
    if listener is not None:
        consumer.listen(listener)
    return consumer


async def send(w: Recording, *bodies: bytes) -> None:
    async with w.cluster.producer("orders", ProducerConfig(namespace=NS)) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body, keys=["k"]), queue=QUEUE)


@asynccontextmanager
async def within(**options: Any) -> AsyncIterator[tuple[Recording, AdminClient, AdminClient]]:
    """Run a cluster with a topic T in the namespace and another T without namespace."""
    async with (
        recording(queues=1, **options) as w,
        w.cluster.admin() as outside,
        admin_within(w) as admin,
    ):
        await admin.create_topic(TOPIC, queues=2)
        yield w, admin, outside


def test_topics_are_limited_to_the_namespace() -> None:
    async def main() -> None:
        async with within() as (w, admin, outside):
            assert {TOPIC, INSIDE} <= set(await outside.topic_list())
            reported = await admin.topic_list()
            assert reported.count(TOPIC) == 1
            assert not [name for name in reported if NS in name]
            [config] = (await admin.topic_config(TOPIC)).values()
            assert (config.name, config.read_queue_nums) == (TOPIC, 2)
            [other] = (await outside.topic_config(TOPIC)).values()
            assert other.read_queue_nums == 1
            await send(w, b"1")
            stats = await admin.topic_stats(TOPIC)
            assert [stats.offsets[one].max_offset for one in sorted(stats.offsets)] == [1, 0]
            assert {queue.topic for queue in stats.offsets} == {TOPIC}
            await admin.update_topic(TOPIC, queues=3, order=True)
            assert await outside.kv_get("ORDER_TOPIC_CONFIG", INSIDE) == "broker-0:3"
            await admin.delete_topic(TOPIC)
            assert TOPIC not in await admin.topic_list()
            assert await outside.kv_list("ORDER_TOPIC_CONFIG") == {}
            assert TOPIC in await outside.topic_list()

    run_virtual(main())


def test_groups_and_offsets_are_limited_to_the_namespace() -> None:
    async def main() -> None:
        async with within() as (w, admin, outside):
            await outside.create_group(SubscriptionGroup("strangers"))
            await admin.create_group(SubscriptionGroup(GROUP, retry_max_times=3))
            names = [one.group_name for one in await admin.group_list()]
            assert GROUP in names
            assert "strangers" not in names
            [config] = (await admin.group_config(GROUP)).values()
            assert (config.group_name, config.retry_max_times) == (GROUP, 3)
            await admin.update_group(GROUP, retry_max_times=5)
            assert f"{NS}%{GROUP}" in {one.group_name for one in await outside.group_list()}
            await send(w, b"1", b"2")
            received: list[bytes] = []
            async with member(w, lambda one: received.append(one.body)) as consumer:
                await w.until(lambda: len(received) == 2)
                await asyncio.sleep(65)
                assert await admin.topic_groups(TOPIC) == [GROUP]
                found = await admin.describe_group(GROUP)
                assert found.members == (consumer.client_id,)
                assert found.offsets[QUEUE].consumer_offset == 2
                assert {one.topic for one in found.offsets} == {TOPIC, f"%RETRY%{GROUP}"}
                stats = await admin.consume_stats(GROUP, TOPIC)
                assert {one.topic for one in stats.offsets} == {TOPIC}
                where = await admin.broker_consume_stats("127.0.0.1:10911")
                assert set(where.stats) == {GROUP, "TOOLS_CONSUMER"}
                assert (
                    f"{NS}%{GROUP}" in (await outside.broker_consume_stats("127.0.0.1:10911")).stats
                )
                rates = {(one.topic, one.group): one for one in await admin.all_stats()}
                assert rates[TOPIC, GROUP].in_24h == rates[TOPIC, GROUP].out_24h == 2
                put = await admin.broker_stats("127.0.0.1:10911", "TOPIC_PUT_NUMS", TOPIC)
                got_by = await admin.broker_stats(
                    "127.0.0.1:10911", "GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"
                )
                assert put.minute.sum == got_by.minute.sum == 2
            await admin.delete_group(GROUP)
            assert GROUP not in [one.group_name for one in await admin.group_list()]

    run_virtual(main())


def test_running_info_has_plain_names_within_the_namespace() -> None:
    async def main() -> None:
        async with within() as (w, admin, outside):
            async with member(w, lambda _: None) as consumer:
                plain = {TOPIC, f"%RETRY%{GROUP}"}
                inside = {INSIDE, f"%RETRY%{NS}%{GROUP}"}
                await asyncio.sleep(5)
                connection = await admin.consumer_connection(GROUP)
                assert set(connection.subscriptions) == plain
                assert {one.topic for one in connection.subscriptions.values()} == plain
                info = await admin.running_info(GROUP, consumer.client_id)
                assert {one.topic for one in info.subscriptions} == plain
                assert {one.topic for one in info.queues} == plain
                assert set(info.statuses) == plain
                reported = await outside.running_info(f"{NS}%{GROUP}", consumer.client_id)
                assert {one.topic for one in reported.subscriptions} == inside
                assert {one.topic for one in reported.queues} == inside
                assert set(reported.statuses) == inside
                assert reported.properties == info.properties
            async with w.cluster.producer("orders", ProducerConfig(namespace=NS)) as producer:
                await producer.send(Message(TOPIC, b"1"))
                [one] = await admin.producer_connection("orders")
                assert one.client_id == producer.client_id
                assert list(await admin.producers("127.0.0.1:10911")) == ["orders"]

    run_virtual(main())


def test_message_is_delivered_directly_with_its_plain_topic() -> None:
    async def main() -> None:
        async with within() as (w, admin, _):
            received: list[tuple[str, bytes]] = []
            await send(w, b"1")
            async with member(w, lambda one: received.append((one.topic, one.body))) as consumer:
                await w.until(lambda: len(received) == 1)
                message = await admin.message_at(QUEUE, 0)
                assert message.topic == TOPIC
                [same] = await admin.messages_by_key(TOPIC, "k")
                assert (same.topic, same.offset_msg_id) == (TOPIC, message.offset_msg_id)
                assert (await admin.message_by_id(message.offset_msg_id)).topic == TOPIC
                done = await admin.consume_directly(
                    GROUP, consumer.client_id, message.offset_msg_id
                )
                assert done.consume_result is ConsumeResult.SUCCESS
            assert received == [(TOPIC, b"1")] * 2

    run_virtual(main())


def test_live_members_follow_an_offset_reset() -> None:
    async def reset(*, by_broker: bool) -> None:
        async with within(use_server_side_reset_offset=by_broker) as (w, admin, _):
            received: list[bytes] = []
            await send(w, b"1", b"2", b"3")
            async with member(w, lambda one: received.append(one.body)):
                await w.until(lambda: len(received) == 3)
                await asyncio.sleep(6)  # until offsets are committed
                planned = await admin.reset_offset(GROUP, TOPIC, to="earliest", dry_run=True)
                assert {(one.queue, one.moved) for one in planned} == {
                    (QUEUE, -3),
                    (MessageQueue(TOPIC, "broker-0", 1), 0),
                }
                moved = await admin.reset_offset(GROUP, TOPIC, to="earliest")
                assert {one.queue.topic for one in moved} == {TOPIC}
                await w.until(lambda: len(received) == 6)
                await asyncio.sleep(6)
                if by_broker:
                    await admin.reset_offset(GROUP, TOPIC, queue=QUEUE, offset=2)
                    await w.until(lambda: len(received) == 7)
            await send(w, b"4")
            await admin.skip_backlog(GROUP, TOPIC)
            await admin.clone_offsets(GROUP, "copies", TOPIC)
            stats = await admin.consume_stats("copies", TOPIC)
            assert stats.offsets[QUEUE].consumer_offset == 4

    run_virtual(reset(by_broker=False))
    run_virtual(reset(by_broker=True))


def test_members_report_offsets_by_qualified_names() -> None:
    async def main() -> None:
        async with within() as (w, _, outside):
            received: list[bytes] = []
            async with member(w, lambda one: received.append(one.body)) as consumer:
                await send(w, b"1", b"2")
                await w.until(lambda: len(received) == 2)
                header = GetConsumerStatusRequestHeader(INSIDE, f"{NS}%{GROUP}")
                code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
                body = await server_of(outside, "127.0.0.1:10911").request_body(code, header)
                reported = decode_consumer_status(body).clients[consumer.client_id]
                assert reported[MessageQueue(INSIDE, "broker-0", 0)] == 2
                assert {queue.topic for queue in reported} == {INSIDE}

    run_virtual(main())


def test_ordered_queue_is_locked_by_its_qualified_name() -> None:
    async def main() -> None:
        async with within() as (w, _, outside):
            received: list[bytes] = []
            consumer = member(w)
            consumer.listen_orderly(lambda one: received.append(one.body))
            async with consumer:
                await send(w, b"1", b"2")
                await w.until(lambda: received == [b"1", b"2"])
                locks = w.cluster.broker().components.queue_locks
                mine = [MessageQueue(INSIDE, "broker-0", n) for n in range(2)]
                assert locks.lock(f"{NS}%{GROUP}", "other", mine, 0) == []
                reported = await outside.running_info(f"{NS}%{GROUP}", consumer.client_id)
                assert all(reported.queues[one].locked for one in mine)
            assert locks.lock(f"{NS}%{GROUP}", "other", mine, 0) == mine

    run_virtual(main())


def test_brokers_assign_queues_and_store_modes_within_the_namespace() -> None:
    async def main() -> None:
        async with within() as (w, admin, outside):
            received: list[bytes] = []
            async with member(
                w, lambda one: received.append(one.body), client_rebalance=False
            ) as consumer:
                await send(w, b"1")
                await w.until(lambda: received == [b"1"])
                assert {one.topic for one in consumer.queues} == {TOPIC, f"%RETRY%{GROUP}"}
            await admin.set_request_mode(TOPIC, GROUP, is_pop=False)
            [reported] = (await admin.request_modes()).values()
            mode = reported[TOPIC][GROUP]
            assert (mode.topic, mode.consumer_group) == (TOPIC, GROUP)
            assert (mode.mode, mode.pop_share_queue_num) == (MessageRequestMode.PULL, 0)
            [known] = (await outside.request_modes()).values()
            assert f"{NS}%{GROUP}" in known[INSIDE]

    run_virtual(main())


def test_dead_letters_are_listed_and_redriven_within_the_namespace() -> None:
    async def main() -> None:
        async with within() as (w, admin, outside):
            await send(w, b"1", b"2")
            refused: list[bytes] = []

            def refuse(message: MessageExt) -> None:
                refused.append(message.body)
                raise DeadLetter("no")

            async with member(w, refuse):
                await w.until(lambda: len(refused) == 2)
            first, second = await admin.dead_letters(GROUP)
            assert (first.topic, first.message.topic) == (TOPIC, f"%DLQ%{GROUP}")
            assert await admin.redrive(GROUP, first.message) is not None
            assert await admin.redrive_all(GROUP) == Redrive(sent=1, skipped=1)
            assert await outside.redrive_all(f"{NS}%{GROUP}") == Redrive()
            received: list[MessageExt] = []
            async with member(w, received.append):
                await w.until(lambda: len(received) == 2)
                await asyncio.sleep(30)
            assert sorted(one.body for one in received) == [b"1", b"2"]
            assert {one.topic for one in received} == {TOPIC}
            assert await admin.redrive(GROUP, second.message, to_topic=True) is not None

    run_virtual(main())


def test_subscription_differences_have_plain_names() -> None:
    async def main() -> None:
        async with within() as (w, admin, _):
            other = member(w, lambda _: None, instance_name="other")
            other.unsubscribe(TOPIC)
            other.subscribe(TOPIC, "a")
            async with member(w, lambda _: None), other:
                await asyncio.sleep(5)
                [text] = (await admin.describe_group(GROUP)).differences
                assert TOPIC in text
                assert f"{NS}%" not in text

    run_virtual(main())
