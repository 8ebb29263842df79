"""Queues that are removed or deleted under pollers and ordered consumers: nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.consuming.consumer_config import PullConsumerConfig, PushConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.errors import InvalidParameterError, TopicNotFoundError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

CONFIG = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


async def fill(w: Recording, queues: int, *bodies: bytes) -> None:
    """Send the bodies to the queues in turn."""
    async with w.cluster.producer() as producer:
        for number, body in enumerate(bodies):
            queue = MessageQueue(TOPIC, "broker-0", number % queues)
            await producer.send(Message(TOPIC, body), queue=queue)


async def resize(admin: AdminClient, queues: int) -> None:
    await admin.update_topic(TOPIC, queues=queues)


async def polled(reader: PullConsumer, count: int, timeout_s: float = 60) -> list[bytes]:
    """Poll until `count` messages have arrived, and return their bodies, sorted."""
    received: list[bytes] = []
    async with asyncio.timeout(timeout_s):
        while len(received) < count:
            received += [message.body for message in await reader.poll(timeout_ms=1_000)]
    return sorted(received)


def test_a_subscribed_poller_continues_in_the_remaining_queues() -> None:
    async def main() -> None:
        async with recording(queues=4) as w, w.cluster.admin() as admin:
            reader = w.cluster.pull_consumer("readers", CONFIG)
            reader.subscribe(TOPIC)
            async with reader:
                await fill(w, 4, b"0", b"1", b"2", b"3")
                assert await polled(reader, 4) == [b"0", b"1", b"2", b"3"]
                await reader.commit()
                await fill(w, 4, b"4", b"5", b"6", b"7")
                await resize(admin, 2)
                await asyncio.sleep(60)
                await fill(w, 2, b"8", b"9")
                assert await polled(reader, 4) == [b"4", b"5", b"8", b"9"]
                assert await reader.poll(timeout_ms=30_000) == []
                await resize(admin, 4)
                assert await polled(reader, 2) == [b"6", b"7"], (
                    "the messages of the removed queues waited"
                )
                assert await reader.poll(timeout_ms=30_000) == []

    run_virtual(main())


def test_an_assigned_poller_reads_other_queues_and_reports_a_missing_one_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.admin() as admin:
            reader = w.cluster.pull_consumer("readers", CONFIG)
            async with reader:
                await reader.assign([MessageQueue(TOPIC, "broker-0", n) for n in range(2)])
                await fill(w, 2, b"0", b"1")
                assert await polled(reader, 2) == [b"0", b"1"]
                await resize(admin, 1)
                for body in (b"2", b"3"):
                    await fill(w, 1, body)
                    assert await polled(reader, 1) == [body]
                    await asyncio.sleep(120)
                await resize(admin, 2)
                await fill(w, 2, b"4", b"5")
                assert await polled(reader, 2) == [b"4", b"5"]

    run_virtual(main())
    logged = [one.getMessage().split()[0] for one in caplog.records]
    assert sorted(logged) == ["offset.not_persisted", "pull.failed"]


def test_a_pull_of_a_missing_queue_is_an_error() -> None:
    async def main() -> None:
        async with (
            recording(queues=2) as w,
            w.cluster.admin() as admin,
            w.cluster.pull_consumer() as reader,
        ):
            await fill(w, 2, b"0", b"1")
            queue = MessageQueue(TOPIC, "broker-0", 1)
            assert [one.body for one in (await reader.pull(queue, 0)).messages] == [b"1"]
            await resize(admin, 1)
            with pytest.raises(InvalidParameterError, match="queue 1 of topic T does not"):
                await reader.pull(queue, 0)
            await admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFoundError, match="topic T does not exist"):
                await reader.pull(queue, 0)

    run_virtual(main())


def test_an_ordered_consumer_continues_in_the_remaining_queues() -> None:
    async def main() -> None:
        async with recording(queues=4) as w, w.cluster.admin() as admin:
            received: list[bytes] = []
            consumer = w.cluster.push_consumer(
                "ordered", PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
            )
            consumer.subscribe(TOPIC)
            consumer.listen_orderly(lambda message: received.append(message.body))
            async with consumer:
                await fill(w, 4, b"0", b"1", b"2", b"3")
                await w.until(lambda: len(received) == 4)
                await asyncio.sleep(6)  # committed
                await resize(admin, 2)
                await asyncio.sleep(60)
                await fill(w, 2, b"4", b"5")
                await w.until(lambda: len(received) == 6)
                await resize(admin, 4)
                await fill(w, 4, b"6", b"7", b"8", b"9")
                await w.until(lambda: len(received) == 10, timeout_s=60)
                await asyncio.sleep(60)
            assert sorted(received) == [b"%d" % number for number in range(10)], "each once"

    run_virtual(main())
