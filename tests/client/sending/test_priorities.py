"""Priorities select the queue at the broker, and consumers see them."""

from __future__ import annotations

import asyncio

from kourou.client.config import ProducerConfig
from kourou.model.message import Message
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


def test_priority_selects_the_queue() -> None:
    async def main() -> None:
        async with recording(queues=4) as w, w.cluster.producer() as producer:
            await producer.send(Message(TOPIC, b"first"))  # the next ones take the fast path
            for priority, queue_id in ((0, 0), (2, 2), (3, 3), (99, 3), (2, 2)):
                message = Message(TOPIC, b"%d" % priority, priority=priority)
                assert (await producer.send(message)).queue.queue_id == queue_id
            async with w.consumer():
                await w.until_received(b"first", b"0", b"2", b"2", b"3", b"99")
            assert {one.body: one.priority for one in w.deliveries} == {
                b"first": None,
                b"0": 0,
                b"2": 2,
                b"3": 3,
                b"99": 99,
            }

    run_virtual(main())


def test_delay_or_sharding_key_overrides_priority() -> None:
    async def main() -> None:
        async with recording(queues=4) as w, w.cluster.producer() as producer:
            queues = await producer.fetch_publish_message_queues(TOPIC)
            delayed = Message(TOPIC, b"delayed", priority=3, delay_level=1)
            assert (await producer.send(delayed, queue=queues[1])).queue.queue_id == 1
            ordered = Message(TOPIC, b"ordered", priority=3)
            receipts = {
                (await producer.send(ordered, sharding_key="k")).queue.queue_id for _ in range(8)
            }
            assert len(receipts) == 1
            async with w.consumer():
                await w.until_received(b"delayed", b"ordered")
            assert {one.priority for one in w.deliveries} == {None}

    run_virtual(main())


def test_message_with_priority_is_not_batched() -> None:
    async def main() -> None:
        config = ProducerConfig(linger_ms=100)
        async with recording(queues=4) as w, w.cluster.producer(config=config) as producer:
            messages = [Message(TOPIC, b"x", priority=number) for number in (2, 0, 3)]
            receipts = await asyncio.gather(*map(producer.send, messages))
            assert [receipt.queue.queue_id for receipt in receipts] == [2, 0, 3]

    run_virtual(main())
