"""Tests of Kourou's clients with the Java broker 5.5.0: sends and consumption."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from kourou import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PullConsumerConfig,
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


def test_java_consumer_receives_messages_of_kourou_from_the_java_broker(
    java_client: Client, java_server: JavaServer
) -> None:
    asyncio.run(_send(java_server.namesrv_addr, "PyToJava", 24))

    lines = java_client.run(
        "consume", java_server.namesrv_addr, "java-group", "PyToJava", "*", 24, 0, 60
    )

    assert ["done", "true"] in lines
    received = {int(line[7]): line for line in lines if line[0] == "got"}
    assert sorted(received) == list(range(24))
    assert all(int(received[n][6]) > 5000 for n in range(0, 24, 8)), (
        "compressed bodies arrive inflated"
    )


def test_kourou_consumes_from_the_java_broker_with_redeliveries(
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


def test_kourou_pulls_and_commits_on_the_java_broker(java_server: JavaServer) -> None:
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


def test_kourou_polls_and_broadcasts_from_the_java_broker(
    java_server: JavaServer, tmp_path: Path
) -> None:
    namesrv_addr = java_server.namesrv_addr

    async def poll(group: str, *, is_assigned: bool) -> None:
        config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer = PullConsumer(group, namesrv_addr, config=config)
        if not is_assigned:
            consumer.subscribe("JavaPolled")
        async with consumer:
            queues = await consumer.fetch_subscribe_message_queues("JavaPolled")
            if is_assigned:
                await consumer.assign(queues)
            keys: set[str] = set()
            while len(keys) < 24:
                messages = await consumer.poll(30_000)
                assert messages, f"only {len(keys)} came"
                keys |= {message.keys[0] for message in messages}
            await consumer.commit()
            assert sum([await consumer.committed(queue) or 0 for queue in queues]) == 24
            await consumer.seek_to_beginning(queues[0])
            assert (await consumer.poll(30_000))[0].queue_offset == 0

    async def broadcast(count: int) -> Counter[str]:
        """Return the messages of one member, up to a second after the first `count`."""
        received: Counter[str] = Counter()
        config = PushConsumerConfig(
            message_model=MessageModel.BROADCASTING,
            instance_name="member",
            local_offset_directory=tmp_path,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer = PushConsumer("python-broadcast", namesrv_addr, config=config)
        consumer.subscribe("JavaPolled")
        consumer.listen(lambda message: received.update(message.keys))
        async with consumer, asyncio.timeout(60):
            while sum(received.values()) < count:  # noqa: ASYNC110 - counted on a thread
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
        return received

    async def run() -> None:
        await _send(namesrv_addr, "JavaPolled", 24)
        await poll("python-assigned", is_assigned=True)
        await poll("python-subscribed", is_assigned=False)
        assert sum((await broadcast(24)).values()) == 24
        await _send(namesrv_addr, "JavaPolled", 3)
        assert sorted(await broadcast(3)) == ["key-0", "key-1", "key-2"], "it goes on where it was"

    asyncio.run(run())
