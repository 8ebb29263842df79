"""Tests of Kourou's simple consumer with the Java broker 5.5.0."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou import AdminClient, Message, PoppedMessage, Producer, SimpleConsumer
from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from tests.interop.peer import JavaServer

WAIT_MS = 60_000


async def send(namesrv_addr: str, topic: str, *bodies: bytes, tags: str | None = None) -> None:
    async with Producer("python-producer", namesrv_addr) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags), timeout_ms=15_000)


async def receive_one(consumer: SimpleConsumer, invisible_ms: int = 60_000) -> PoppedMessage:
    (message,) = await consumer.receive(invisible_ms=invisible_ms, wait_ms=WAIT_MS)
    return message


def test_messages_of_the_java_broker_are_received_once_and_acknowledged(
    java_server: JavaServer,
) -> None:
    async def run() -> None:
        topic, group = "SimpleJava", "simple-java"
        await send(java_server.namesrv_addr, topic, *(b"%d" % n for n in range(70)))
        received: Counter[bytes] = Counter()
        consumer = SimpleConsumer(group, java_server.namesrv_addr, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            while len(received) < 70:
                messages = await consumer.receive(invisible_ms=30_000, wait_ms=WAIT_MS)
                received.update(message.body for message in messages)
                await consumer.ack_all(messages)
            assert set(received.values()) == {1}
            assert await consumer.receive(wait_ms=0) == []
            assert consumer.health().is_ok

    asyncio.run(run())


def test_given_back_changed_renewed_and_dead_messages_on_the_java_broker(
    java_server: JavaServer,
) -> None:
    async def run() -> None:
        topic, group = "SimpleJavaSettled", "simple-java-settled"
        await send(java_server.namesrv_addr, topic, b"job")
        consumer = SimpleConsumer(group, java_server.namesrv_addr, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            await consumer.give_back(await receive_one(consumer))
            again = await receive_one(consumer)
            assert (again.topic, again.reconsume_times, again.receipt.is_retry) == (topic, 1, True)
            await consumer.change_invisible(again, 1_000)
            third = await receive_one(consumer, invisible_ms=5_000)
            assert third.reconsume_times == 2
            consumer.renew(third)
            await asyncio.sleep(12)
            assert await consumer.receive(wait_ms=0) == []
            await consumer.dead_letter(third, "no such account")
            assert await consumer.receive(wait_ms=8_000) == []
        async with AdminClient(java_server.namesrv_addr) as admin:
            assert f"%DLQ%{group}" in await admin.topic_list()

    asyncio.run(run())


def test_ordered_queue_of_the_java_broker_waits_for_its_first_message(
    java_server: JavaServer,
) -> None:
    async def run() -> None:
        topic, group = "SimpleJavaOrdered", "simple-java-ordered"
        async with AdminClient(java_server.namesrv_addr) as admin:
            await admin.create_topic(topic, queues=1)
        await send(java_server.namesrv_addr, topic, b"1", b"2", b"3")
        config = SimpleConsumerConfig(ordered=True)
        consumer = SimpleConsumer(group, java_server.namesrv_addr, start="earliest", config=config)
        consumer.subscribe(topic)
        async with consumer:
            (first,) = await consumer.receive(1, wait_ms=WAIT_MS)
            assert await consumer.receive(1, wait_ms=1_000) == []
            await consumer.ack(first)
            rest = await consumer.receive(wait_ms=WAIT_MS)
            assert [first.body, *(message.body for message in rest)] == [b"1", b"2", b"3"]
            await consumer.ack_all(rest)

    asyncio.run(run())


def test_tags_and_sql_filter_on_the_java_broker(java_server: JavaServer) -> None:
    async def run() -> None:
        namesrv_addr = java_server.namesrv_addr
        await send(namesrv_addr, "SimpleJavaTags", b"no", tags="BB")  # the hash of Aa
        await send(namesrv_addr, "SimpleJavaTags", b"yes", tags="Aa")
        await send(namesrv_addr, "SimpleJavaSql", b"yes", tags="x")
        consumer = SimpleConsumer("simple-java-filter", namesrv_addr, start="earliest")
        consumer.subscribe("SimpleJavaTags", tags="Aa")
        consumer.subscribe("SimpleJavaSql", sql="TAGS = 'x'")
        async with consumer:
            received = Counter[tuple[str, bytes]]()
            while received.total() < 2:
                for message in await consumer.receive(wait_ms=WAIT_MS):
                    async with consumer.message_scope(message):
                        received[message.topic, message.body] += 1
            assert received == Counter([("SimpleJavaTags", b"yes"), ("SimpleJavaSql", b"yes")])
            assert await consumer.receive(wait_ms=0) == []

    asyncio.run(run())
