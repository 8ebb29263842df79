"""A queue that moves between polling members is polled by one of them at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

COUNT = 600


def poller(w: Recording, name: str) -> PullConsumer:
    config = PullConsumerConfig(
        instance_name=name,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        poll_timeout_ms=500,
    )
    consumer = w.cluster.pull_consumer("pollers", config)
    consumer.subscribe(TOPIC)
    return consumer


async def poll(consumer: PullConsumer, received: list[bytes], ends: asyncio.Event) -> None:
    """Poll until `ends` is set, then close with all messages acknowledged."""
    async with consumer:
        while not ends.is_set():
            received += [message.body for message in await consumer.poll()]
            await asyncio.sleep(0.1)
        await consumer.commit()


def test_pollers_that_join_and_leave_return_each_message_once() -> None:
    async def main() -> None:
        received: list[bytes] = []
        ends = asyncio.Event()
        async with recording(queues=8) as w, asyncio.TaskGroup() as tasks:

            async def send() -> None:
                async with w.cluster.producer() as producer:
                    for number in range(COUNT):
                        await producer.send(Message(TOPIC, b"%d" % number))
                        await asyncio.sleep(0.02)

            sending = tasks.create_task(send())
            tasks.create_task(poll(poller(w, "m"), received, ends))
            for name in ("a", "z"):
                await asyncio.sleep(1)
                leaves = asyncio.Event()
                passing = tasks.create_task(poll(poller(w, name), received, leaves))
                await asyncio.sleep(5)
                leaves.set()
                await passing
            await sending
            await w.until(lambda: len(set(received)) == COUNT, timeout_s=20)
            ends.set()
        assert Counter(received) == Counter(b"%d" % number for number in range(COUNT))

    run_virtual(main())


def test_a_member_that_does_not_poll_delays_a_move_by_half_a_second() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*[b"%d" % number for number in range(4)])
            async with poller(w, "a") as slow, poller(w, "b") as quick:
                given = await slow.poll(timeout_ms=5_000)
                assert given
                received: list[bytes] = []
                async with asyncio.timeout(8):
                    while len(quick.queues) < 1 or not received:
                        received += [message.body for message in await quick.poll()]
                assert {one.queue_id for one in quick.queues if one.topic == TOPIC} == {1}

    run_virtual(main())


def test_a_second_subscription_does_not_shorten_a_handover() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*[b"%d" % number for number in range(40)])
            first, second = poller(w, "a"), poller(w, "b")
            async with first, second:
                await w.until(lambda: {q for q in second.queues if q.topic == TOPIC} != set())
                [queue] = [one for one in second.queues if one.topic == TOPIC]
                second.subscribe(TOPIC)
                await asyncio.sleep(1.5)
                assert second.position(queue) is None, "the previous owner may still commit"
                await asyncio.sleep(1)
                assert second.position(queue) is not None

    run_virtual(main())
