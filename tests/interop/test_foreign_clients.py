"""Tests of unchanged third-party clients with Kourou: Java 5.5.0 and 4.9.8, Go and Node."""

from __future__ import annotations

import asyncio
import os

import pytest

from kourou import AdminClient, Message, MessageExt, Producer, PullConsumer
from kourou.testing.process import Serving
from tests.interop.clients import Client, go_client

COUNT = 40


async def _all_messages(namesrv_addr: str, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with PullConsumer("interop-reader", namesrv_addr) as consumer:
        for queue in await consumer.fetch_subscribe_message_queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
    return found


async def _send(namesrv_addr: str, topic: str, count: int) -> None:
    async with Producer("interop-python-producer", namesrv_addr) as producer:
        for number in range(count):
            body = f"python-{number}".encode() + (b"x" * 5000 if number % 8 == 0 else b"")
            tags = "even" if number % 2 == 0 else "odd"
            await producer.send(
                Message(
                    topic,
                    body,
                    tags=tags,
                    keys=[f"key-{number}"],
                    properties={"number": str(number)},
                )
            )


async def _committed(namesrv_addr: str, group: str, topic: str) -> set[int | None]:
    async with PullConsumer(group, namesrv_addr) as consumer:
        queues = await consumer.fetch_subscribe_message_queues(topic)
        return {await consumer.committed(queue) for queue in queues}


async def _create(namesrv_addr: str, topic: str) -> None:
    async with AdminClient(namesrv_addr) as admin:
        await admin.create_topic(topic)


def _topic(purpose: str, client: Client) -> str:
    return f"{purpose}-{client.name}".replace(" ", "-").replace(".", "_")


def _numbers(lines: list[list[str]]) -> list[int]:
    return sorted(int(line[7]) for line in lines if line[0] == "got")


def test_sends_of_every_kind_are_stored_unchanged(client: Client, kourou_server: Serving) -> None:
    topic = _topic("From", client)
    asyncio.run(_create(kourou_server.namesrv, topic))  # Node's client does not create it

    lines = client.run("produce", kourou_server.namesrv, topic, COUNT)

    assert not [line for line in lines if line[0] == "failed"]
    assert {line[1] for line in lines if line[0] == "sent"} == {"SEND_OK"}
    stored = asyncio.run(_all_messages(kourou_server.namesrv, topic))
    assert sorted(int(m.properties["number"]) for m in stored) == list(range(COUNT))
    for message in stored:
        number = int(message.properties["number"])
        start = f"{client.prefix}-{number}".encode()
        assert message.body.startswith(start)
        assert len(message.body) == len(start) + (5001 if number % 8 == 0 else 0)
        assert message.properties["language"].endswith(" ☕")
        assert message.keys == [f"key-{number}"]


def test_push_consumer_receives_messages_by_tag(client: Client, kourou_server: Serving) -> None:
    topic = _topic("To", client)
    asyncio.run(_send(kourou_server.namesrv, topic, COUNT))

    lines = client.run(
        "consume", kourou_server.namesrv, _topic("even", client), topic, "even", COUNT // 2, 0, 60
    )

    assert ["done", "true"] in lines
    assert _numbers(lines) == list(range(0, COUNT, 2))
    assert {line[4] for line in lines if line[0] == "got"} == {"even"}


def test_listener_that_fails_three_times_receives_each_message_four_times(
    client: Client, kourou_server: Serving
) -> None:
    topic = _topic("Retried", client)
    asyncio.run(_send(kourou_server.namesrv, topic, 5))

    lines = client.run(
        "consume", kourou_server.namesrv, _topic("retry", client), topic, "*", 5, 3, 120
    )

    assert ["done", "true"] in lines
    for number in range(5):
        deliveries = [line for line in lines if line[0] == "got" and line[1] == f"key-{number}"]
        assert [int(line[2]) for line in deliveries] == [1, 2, 3, 4]
        assert [int(line[3]) for line in deliveries] == [0, 1, 2, 3]
        assert {line[5] for line in deliveries} == {topic}


def test_broadcast_consumer_receives_every_message_and_commits_nothing(
    client: Client, kourou_server: Serving
) -> None:
    topic, group = _topic("Broadcast", client), f"all-{os.getpid()}"  # a member's file outlives it
    asyncio.run(_send(kourou_server.namesrv, topic, 24))

    lines = client.run("broadcast", kourou_server.namesrv, group, topic, 24, 60)

    assert ["done", "true"] in lines
    assert _numbers(lines) == list(range(24))
    assert asyncio.run(_committed(kourou_server.namesrv, group, topic)) == {None}


@pytest.mark.parametrize("way", ["pull", "assign"])
def test_pull_consumer_reads_a_whole_topic(
    client: Client, kourou_server: Serving, way: str
) -> None:
    if client.name == "Node" or (client.name == "Go" and way == "assign"):
        return  # the client does not have this consumer
    topic = _topic(f"Pulled-{way}", client)
    asyncio.run(_send(kourou_server.namesrv, topic, 24))

    lines = client.run(way, kourou_server.namesrv, _topic(f"by-{way}", client), topic, 24, 60)

    assert ["done", "true"] in lines
    assert _numbers(lines) == list(range(24))


def test_go_admin_client_creates_lists_and_deletes_a_topic(kourou_server: Serving) -> None:
    lines = go_client().run("admin", kourou_server.namesrv, kourou_server.broker, "FromGoAdmin")

    assert ["created", "FromGoAdmin"] in lines
    assert ["topic", "FromGoAdmin"] in lines
    assert ["deleted", "FromGoAdmin"] in lines
