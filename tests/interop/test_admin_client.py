"""Tests that Kourou's AdminClient gets the same results from the Java broker 5.5.0 and Kourou."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kourou import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    PushConsumerConfig,
)
from kourou.errors import KourouError
from kourou.model.group import SubscriptionGroup
from kourou.testing.process import Serving
from tests.interop.peer import JavaServer

TOPIC, GROUP, OTHER = "Administered", "administered", "administered-too"
COUNT = 8
Facts = dict[str, Any]


async def _send(producer: Producer) -> list[tuple[str, str]]:
    """Send all messages, two to a queue; return their ids."""
    ids = []
    for number in range(COUNT):
        message = Message(TOPIC, b"%d" % number, tags="tag", keys=[f"key-{number}"])
        queue = MessageQueue(TOPIC, "broker-a", number % 4)
        receipt = await producer.send(message, queue=queue, timeout_ms=15_000)
        ids.append((receipt.msg_id, receipt.offset_msg_id))
    return ids


def _consumer(namesrv_addr: str) -> PushConsumer:
    async def listen(_: MessageExt) -> None: ...

    consumer = PushConsumer(
        GROUP,
        namesrv_addr,
        config=PushConsumerConfig(
            instance_name="administered",
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            persist_offset_interval_ms=200,
        ),
    )
    consumer.subscribe(TOPIC, tags="tag")
    consumer.listen(listen)
    return consumer


async def _consumed(admin: AdminClient) -> None:
    """Wait until the group has consumed and committed all messages."""
    async with asyncio.timeout(60):
        while True:
            stats = await admin.consume_stats(GROUP, TOPIC)
            if sum(at.consumer_offset for at in stats.offsets.values()) == COUNT:
                return
            await asyncio.sleep(0.1)


async def _refusal(call: Any) -> str:
    """Return the kind of error that a call raises."""
    try:
        await call
    except KourouError as error:
        return type(error).__name__
    return "none"


async def _topics(admin: AdminClient, facts: Facts) -> None:
    facts["listed"] = TOPIC in await admin.topic_list()
    facts["listed of cluster"] = TOPIC in await admin.topic_list("DefaultCluster")
    facts["no such cluster"] = await admin.topic_list("Nowhere")
    facts["config"] = await admin.topic_config(TOPIC)
    route = await admin.topic_route(TOPIC)
    facts["queues"] = route.queue_datas
    facts["brokers"] = [
        (b.cluster, b.broker_name, list(b.broker_addrs)) for b in route.broker_datas
    ]
    facts["order"] = await admin.kv_get("ORDER_TOPIC_CONFIG", TOPIC)
    stats = await admin.topic_stats(TOPIC)
    facts["stats"] = {q: (at.min_offset, at.max_offset) for q, at in stats.offsets.items()}
    facts["groups of topic"] = await admin.topic_groups(TOPIC)
    facts["no such topic"] = [
        await _refusal(admin.topic_config("Nothing")),
        await _refusal(admin.topic_route("Nothing")),
        await _refusal(admin.topic_stats("Nothing")),
    ]


async def _groups(admin: AdminClient, client_id: str, facts: Facts) -> None:
    facts["group config"] = await admin.group_config(GROUP)
    facts["group listed"] = GROUP in {group.group_name for group in await admin.group_list()}
    described = await admin.describe_group(GROUP)
    facts["members"], facts["lag"] = described.members, described.lag
    live = await admin.consumer_connection(GROUP)
    facts["live"] = [(one.client_id, one.language, one.version) for one in live.connections]
    facts["wanted"] = {t: replace(data, sub_version=0) for t, data in live.subscriptions.items()}
    facts["how"] = (live.consume_type, live.message_model, live.consume_from_where)
    info = await admin.running_info(GROUP, client_id)
    facts["running"] = (
        sorted(info.queues),
        [(one.topic, one.sub_string) for one in info.subscriptions],
    )
    facts["no such group"] = [
        await _refusal(admin.consumer_connection("nobody")),
        await _refusal(admin.describe_group("nobody")),
        await _refusal(admin.running_info(GROUP, "nobody")),
    ]


async def _offsets(admin: AdminClient, facts: Facts) -> None:
    facts["cloned"] = await _refusal(admin.clone_offsets(GROUP, OTHER, TOPIC))
    stats = await admin.consume_stats(OTHER, TOPIC)
    facts["where"] = {q: (at.broker_offset, at.consumer_offset) for q, at in stats.offsets.items()}
    facts["reset"] = await admin.reset_offset(OTHER, TOPIC, to="earliest")
    facts["skipped"] = await admin.skip_backlog(OTHER, TOPIC)
    queue = MessageQueue(TOPIC, "broker-a", 1)
    facts["reset one"] = await admin.reset_offset(OTHER, TOPIC, queue=queue, offset=1)
    facts["reset by time"] = await admin.reset_offset(OTHER, TOPIC, at_ms=1_000)
    facts["reset live"] = await admin.skip_backlog(GROUP, TOPIC)


async def _messages(admin: AdminClient, ids: tuple[str, str], client_id: str, facts: Facts) -> None:
    unique_id, offset_id = ids
    found = [
        await admin.message_by_id(offset_id),
        await admin.message_by_unique_key(TOPIC, unique_id),
        await admin.message_at(MessageQueue(TOPIC, "broker-a", 1), 1),
    ]
    facts["found"] = [(m.body, m.tags, m.keys, m.queue_id, m.queue_offset) for m in found]
    facts["ids"] = [m.msg_id == unique_id for m in found]
    facts["no such message"] = [
        await _refusal(admin.message_at(MessageQueue(TOPIC, "broker-a", 1), 100)),
        await _refusal(admin.message_by_unique_key(TOPIC, "0" * 32)),
    ]
    result = await admin.consume_directly(GROUP, client_id, offset_id)
    facts["consumed directly"] = replace(result, spent_time_ms=0)


async def _servers(admin: AdminClient, broker: str, facts: Facts) -> None:
    info = await admin.cluster_info()
    facts["clusters"] = info.clusters
    facts["version"] = (await admin.runtime_info(broker))["brokerVersionDesc"]
    facts["setting"] = (await admin.broker_config(broker))["brokerPermission"]
    await admin.update_broker_config(broker, {"brokerPermission": "4"})
    facts["set"] = (await admin.broker_config(broker))["brokerPermission"]
    await admin.update_broker_config(broker, {"brokerPermission": "6"})
    facts["no such stats"] = await _refusal(admin.broker_stats(broker, "TOPIC_PUT_NUMS", "Nothing"))
    consumed = await admin.broker_consume_stats(broker)
    facts["consume stats"] = sorted(
        (str(queue), at.broker_offset, at.consumer_offset)
        for stats in consumed.stats[GROUP]
        for queue, at in stats.offsets.items()
    )
    (settings,) = (await admin.namesrv_config()).values()
    facts["name server"] = settings["enableTopicList"]
    await admin.kv_put("ns", "key", "value")
    facts["kv"] = await admin.kv_list("ns")
    await admin.kv_delete("ns", "key")
    facts["kv gone"] = await _refusal(admin.kv_get("ns", "key"))
    facts["wiped"] = [count > 0 for count in (await admin.wipe_write_perm("broker-a")).values()]
    facts["wiped perm"] = [queues.perm for queues in (await admin.topic_route(TOPIC)).queue_datas]
    await admin.add_write_perm("broker-a")
    facts["added perm"] = [queues.perm for queues in (await admin.topic_route(TOPIC)).queue_datas]


async def _look(namesrv_addr: str, broker_addr: str) -> Facts:
    """Return the results of administration calls in the life of a topic and its groups."""
    facts: Facts = {}
    async with AdminClient(namesrv_addr) as admin:
        attributes = {"message.type": "NORMAL"}
        await admin.create_topic(TOPIC, queues=4, order=True, attributes=attributes)
        await admin.create_group(SubscriptionGroup(GROUP, retry_max_times=5))
        await admin.create_group(SubscriptionGroup(OTHER))
        await admin.update_group(GROUP, retry_queue_nums=2)
        async with Producer("administered-by", namesrv_addr) as producer:
            ids = await _send(producer)
            async with _consumer(namesrv_addr) as consumer:
                await _consumed(admin)
                await _topics(admin, facts)
                await _groups(admin, consumer.client_id, facts)
                await _offsets(admin, facts)
                await _messages(admin, ids[5], consumer.client_id, facts)
                await _servers(admin, broker_addr, facts)
            live = await admin.producer_connection("administered-by", TOPIC)
            facts["producers"] = [(one.language, one.version) for one in live]
            facts["producer groups"] = "administered-by" in await admin.producers(broker_addr)
        await admin.delete_group(OTHER, clean_offsets=True)
        await admin.delete_topic(TOPIC)
        facts["deleted"] = [
            await _refusal(admin.topic_config(TOPIC)),
            await _refusal(admin.describe_group(OTHER)),
        ]
    return facts


def test_admin_client_gets_the_same_results_from_both(
    java_server: JavaServer, kourou_server: Serving
) -> None:
    java = asyncio.run(_look(java_server.namesrv_addr, java_server.broker_addr))
    kourou = asyncio.run(_look(kourou_server.namesrv, kourou_server.broker))

    assert kourou == java
    assert kourou["lag"] == 0
    assert kourou["found"][0] == (b"5", "tag", ["key-5"], 1, 1)
    assert kourou["no such topic"] == ["TopicNotFoundError"] * 3


def test_java_finds_messages_by_key(java_server: JavaServer) -> None:
    async def run() -> None:
        async with Producer("keyed", java_server.namesrv_addr) as producer:
            for number in range(4):
                message = Message("KeyedForAdmin", b"%d" % number, keys=[f"key-{number % 2}"])
                await producer.send(message, timeout_ms=15_000)
        async with AdminClient(java_server.namesrv_addr) as admin, asyncio.timeout(30):
            while True:  # Java indexes after it has answered the send
                try:
                    found = await admin.messages_by_key("KeyedForAdmin", "key-1")
                except KourouError:
                    continue
                if len(found) == 2:
                    break
        assert [m.body for m in found] == [b"1", b"3"]

    asyncio.run(run())
