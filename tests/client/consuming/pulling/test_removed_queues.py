"""Queues that are removed under their consumers: other queues continue, nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.consuming.acknowledging.redelivery import RetryLater
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.receiving import BOTH_KINDS, receiving

BODIES = [b"%d" % number for number in range(20)]
OTHER = "other"


async def fill(w: Recording, queues: int, bodies: list[bytes]) -> None:
    """Send the bodies to one queue after the other."""
    async with w.cluster.producer() as producer:
        for number, body in enumerate(bodies):
            queue = MessageQueue(TOPIC, "broker-0", number % queues)
            await producer.send(Message(TOPIC, body), queue=queue)


async def resize(admin: AdminClient, queues: int) -> None:
    await admin.update_topic(TOPIC, queues=queues)


def test_messages_of_a_removed_queue_are_consumed_when_it_is_added_again() -> None:
    async def main() -> None:
        held = asyncio.Event()

        async def hold(message: MessageExt) -> None:
            if message.queue_id >= 2:
                await held.wait()

        async with recording(queues=4) as w, w.cluster.admin() as admin:
            await fill(w, 4, BODIES)
            async with w.consumer(hold, shutdown_timeout_ms=0) as consumer:
                await w.until_received(*BODIES)
                await asyncio.sleep(6)
                await resize(admin, 2)
                await w.until(
                    lambda: {q.queue_id for q in consumer.queues if q.topic == TOPIC} == {0, 1},
                    timeout_s=60,
                )
                held.set()
                w.received.clear()
                await fill(w, 2, [b"new-0", b"new-1"])
                await w.until_received(b"new-0", b"new-1")
                await asyncio.sleep(60)
                assert sorted(w.received) == [b"new-0", b"new-1"]

                w.received.clear()
                await resize(admin, 4)
                unfinished = [body for number, body in enumerate(BODIES) if number % 4 >= 2]
                await w.until_received(*unfinished, timeout_s=60)
                await asyncio.sleep(60)
                assert Counter(w.received) == Counter(unfinished), "unacknowledged messages, once"
            assert await w.committed() == len(BODIES) + 2

    run_virtual(main())


def test_deleting_a_consumed_topic_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def slow(message: MessageExt) -> None:
            await asyncio.sleep(30)
            if message.topic == TOPIC and message.body == b"again" and not message.reconsume_times:
                raise RetryLater(level=1)

        async with recording(queues=2) as w, w.cluster.admin() as admin:
            await admin.create_topic(OTHER, queues=2)
            consumer = w.consumer(slow)
            consumer.subscribe(OTHER)
            async with consumer, w.cluster.producer() as producer:
                await w.send(*BODIES, b"again")
                await w.until_received(*BODIES[:19])
                await admin.delete_topic(TOPIC)
                for number in range(5):
                    await producer.send(Message(OTHER, b"other-%d" % number))
                    await asyncio.sleep(20)
                await w.until_received(*[b"other-%d" % number for number in range(5)])
                # Messages sent back before or after the deletion belong to the group.
                await w.until_received(b"again", b"again", timeout_s=120)
                assert consumer.health().is_open
                stats = await admin.consume_stats("consumers")
                assert TOPIC not in {queue.topic for queue in stats.offsets}

    run_virtual(main())
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert errors == [], "no error for an operator"
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) <= 10, [one.getMessage() for one in warnings]


@BOTH_KINDS
def test_a_deleted_topic_created_again_is_consumed_from_its_start(kind: str) -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.admin() as admin, receiving(w, kind):
            for _ in range(3):
                w.received.clear()
                await w.send(*BODIES)
                await w.until_received(*BODIES, timeout_s=60)
                assert sorted(w.received) == sorted(BODIES), "each once"
                await admin.delete_topic(TOPIC)
                await asyncio.sleep(5)
                await admin.create_topic(TOPIC, queues=2)

    run_virtual(main())
