"""Kourou's clients, unchanged, send to and consume from the Java broker 5.5.0."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
)
from tests.interop.clients import Client
from tests.interop.peer import JavaServer


async def _send(namesrv_addr: str, topic: str, count: int) -> list[str]:
    async with Producer("python-producer", namesrv_addr) as producer:
        sent = []
        for number in range(count):
            body = f"python-{number}".encode() + (b"x" * 5000 if number % 8 == 0 else b"")
            receipt = await producer.send(
                Message(
                    topic,
                    body,
                    tags="even" if number % 2 == 0 else "odd",
                    keys=[f"key-{number}"],
                    properties={"number": str(number)},
                ),
                timeout_ms=15_000,
            )
            sent.append(receipt.msg_id)
        return sent


def test_a_java_consumer_gets_what_kourou_sent_through_the_java_broker(
    java_client: Client, java_server: JavaServer
) -> None:
    asyncio.run(_send(java_server.namesrv_addr, "PyToJava", 24))

    lines = java_client.run(
        "consume", java_server.namesrv_addr, "java-group", "PyToJava", "*", 24, 0, 60
    )

    assert ["done", "true"] in lines
    got = {int(line[7]): line for line in lines if line[0] == "got"}
    assert sorted(got) == list(range(24))
    assert all(int(got[n][6]) > 5000 for n in range(0, 24, 8)), "compressed bodies arrive inflated"


def test_kourou_consumes_from_the_java_broker_and_its_retries_come_back(
    java_server: JavaServer,
) -> None:
    deliveries: Counter[str] = Counter()

    async def run() -> None:
        await _send(java_server.namesrv_addr, "JavaHeld", 12)
        done = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            deliveries[message.keys[0]] += 1
            assert message.topic == "JavaHeld"
            if message.keys[0] == "key-3" and deliveries["key-3"] <= 2:
                raise RuntimeError("not yet")
            if len(deliveries) == 12 and deliveries["key-3"] == 3:
                done.set()

        consumer = PushConsumer(
            "python-group",
            java_server.namesrv_addr,
            config=PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET),
        )
        consumer.subscribe("JavaHeld")
        consumer.listen(listen)
        async with consumer:
            await asyncio.wait_for(done.wait(), 120)

    asyncio.run(run())

    assert deliveries == {**{f"key-{n}": 1 for n in range(12)}, "key-3": 3}


def test_kourou_pulls_and_keeps_its_offset_on_the_java_broker(java_server: JavaServer) -> None:
    async def run() -> None:
        sent = await _send(java_server.namesrv_addr, "JavaPulled", 16)
        async with PullConsumer("python-puller", java_server.namesrv_addr) as consumer:
            seen = []
            for queue in await consumer.fetch_subscribe_message_queues("JavaPulled"):
                result = await consumer.pull(queue, 0)
                seen += [m.msg_id for m in result.messages]
                await consumer.commit(queue, result.next_offset)
                assert await consumer.committed(queue) == result.next_offset
            assert sorted(seen) == sorted(sent)

    asyncio.run(run())
