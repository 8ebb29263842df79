"""The official Java client, unchanged, sends to and consumes from Kourou."""

from __future__ import annotations

import asyncio

import pytest

from kourou import AdminClient, Message, MessageExt, Producer, PullConsumer
from kourou.testing.process import Serving
from tests.interop.peer import run_client


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


def test_what_the_java_client_sends_in_every_way_is_stored_as_it_was_sent(
    jars: str, kourou_server: Serving
) -> None:
    lines = run_client(jars, "produce", kourou_server.namesrv, "FromJava", 40)

    assert not [line for line in lines if line[0] == "failed"]
    assert {line[1] for line in lines if line[0] == "sent"} == {"SEND_OK"}
    stored = asyncio.run(_all_messages(kourou_server.namesrv, "FromJava"))
    assert sorted(int(m.properties["number"]) for m in stored) == list(range(40))
    for message in stored:
        number = int(message.properties["number"])
        assert message.body.startswith(b"java-%d" % number)
        assert len(message.body) == (len(b"java-%d" % number) + (5001 if number % 8 == 0 else 0))
        assert message.properties["language"] == "Jävä ☕"
        assert message.keys == [f"key-{number}"]


def test_a_java_push_consumer_gets_each_message_and_its_tag_filter_holds(
    jars: str, kourou_server: Serving
) -> None:
    asyncio.run(_send(kourou_server.namesrv, "ToJava", 40))

    lines = run_client(
        jars, "consume", kourou_server.namesrv, "java-even", "ToJava", "even", 20, 0, 60
    )

    assert ["done", "true"] in lines
    got = [line for line in lines if line[0] == "got"]
    assert sorted(int(line[7]) for line in got) == list(range(0, 40, 2))
    assert {line[4] for line in got} == {"even"}


def test_a_java_listener_that_fails_three_times_then_succeeds_gets_each_message_four_times(
    jars: str, kourou_server: Serving
) -> None:
    asyncio.run(_send(kourou_server.namesrv, "Retried", 5))

    lines = run_client(
        jars, "consume", kourou_server.namesrv, "java-retry", "Retried", "*", 5, 3, 120
    )

    assert ["done", "true"] in lines
    for number in range(5):
        deliveries = [line for line in lines if line[0] == "got" and line[1] == f"key-{number}"]
        assert [int(line[2]) for line in deliveries] == [1, 2, 3, 4]
        assert [int(line[3]) for line in deliveries] == [0, 1, 2, 3]
        assert {line[5] for line in deliveries} == {"Retried"}


def test_the_java_lite_pull_consumer_reads_a_topic(jars: str, kourou_server: Serving) -> None:
    asyncio.run(_send(kourou_server.namesrv, "LitePulled", 24))

    lines = run_client(jars, "pull", kourou_server.namesrv, "java-lite", "LitePulled", 24, 60)

    assert ["done", "true"] in lines
    assert sorted(int(line[7]) for line in lines if line[0] == "got") == list(range(24))


@pytest.mark.parametrize("kind", ["transaction", "timer"])
def test_what_is_not_built_yet_is_refused_and_nothing_is_stored(
    jars: str, kourou_server: Serving, kind: str
) -> None:
    topic = f"Refused-{kind}"
    asyncio.run(_create(kourou_server.namesrv, topic))

    lines = run_client(jars, "send-error", kourou_server.namesrv, topic, kind)

    assert [line for line in lines if line[0] == "refused"], lines
    assert asyncio.run(_all_messages(kourou_server.namesrv, topic)) == []


async def _create(namesrv_addr: str, topic: str) -> None:
    async with AdminClient(namesrv_addr) as admin:
        await admin.create_topic(topic)
