"""Tests of groups with members of Kourou and of third-party clients: each queue has one member."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou import Message, Producer, PushConsumer
from tests.interop.clients import Client
from tests.interop.ledger import make_topics
from tests.interop.members import PATIENCE_S, SETTLE_S, Inbox, consumer_of, name_of

QUEUES = 4
EACH = 3


async def _queues(member: PushConsumer, topic: str, count: int) -> None:
    """Wait until Kourou's member has `count` queues of the topic."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(queue.topic == topic for queue in member.queues) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _send(producer: Producer, topic: str, prefix: str) -> list[str]:
    """Send some messages to each queue; return their keys."""
    keys = []
    for queue in await producer.fetch_publish_message_queues(topic):
        for number in range(EACH):
            keys.append(f"{prefix}-{queue.queue_id}-{number}")
            message = Message(topic, b"shared", keys=keys[-1:])
            await producer.send(message, queue=queue, timeout_ms=15_000)
    return keys


def _keys(inbox: Inbox) -> list[str]:
    return [message.keys[0] for message in inbox.messages]


def test_foreign_member_and_kourou_share_queues_and_take_over(
    client: Client, namesrv_addr: str
) -> None:
    topic = name_of("Mixed")
    group = f"{topic}-group"

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=QUEUES)
        inbox = Inbox()
        async with (
            Producer("mixing", namesrv_addr) as producer,
            consumer_of(namesrv_addr, topic, inbox.take, persist_offset_interval_ms=200) as member,
        ):
            await _queues(member, topic, QUEUES)
            alone = await _send(producer, topic, "alone")
            await inbox.exactly(len(alone))
            half = QUEUES // 2 * EACH
            foreign = asyncio.create_task(
                asyncio.to_thread(
                    client.run, "consume", namesrv_addr, group, topic, "*", half, 0, PATIENCE_S
                )
            )
            await _queues(member, topic, QUEUES // 2)
            shared = await _send(producer, topic, "shared")
            theirs = [line[1] for line in await foreign if line[0] == "got"]
            assert len(theirs) == half, theirs
            await _queues(member, topic, QUEUES)
            after = await _send(producer, topic, "after")
            async with asyncio.timeout(PATIENCE_S):
                while not set(after) <= set(_keys(inbox)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.sleep(SETTLE_S)
        assert Counter(_keys(inbox) + theirs) == dict.fromkeys(alone + shared + after, 1)

    asyncio.run(run())
