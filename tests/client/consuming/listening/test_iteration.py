"""`async for`: requesting the next message acknowledges; leaving the loop does not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

BODIES = [b"%d" % number for number in range(12)]


def iterated(w: Recording) -> PushConsumer:
    """Return a consumer without a listener."""
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = w.cluster.push_consumer(config=config)
    consumer.subscribe(TOPIC)
    return consumer


async def decline(consumer: PushConsumer, body: bytes) -> None:
    """Leave a loop by an exception in the body of this message."""
    async for message in consumer:
        if message.body == body:
            raise ValueError("declined")


def test_requesting_the_next_message_acknowledges_the_one_before() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            received = []
            async with iterated(w) as consumer:
                async for message in consumer:
                    received.append(message.body)
                    if len(received) == 5:
                        break
            assert received == BODIES[:5]
            assert await w.committed() == 4

    run_virtual(main())


def test_the_message_of_a_left_loop_is_first_in_the_next_loop() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            received = []
            async with iterated(w) as consumer:
                async for message in consumer:
                    received.append(message.body)
                    if len(received) == 3:
                        break
                with pytest.raises(ValueError, match="declined"):
                    await decline(consumer, b"2")
                received.append(b"declined")
                async for message in consumer:
                    received.append(message.body)
                    if len(received) == 6:
                        break
            assert received == [b"0", b"1", b"2", b"declined", b"2", b"3"]

    run_virtual(main())


def test_the_message_of_a_failed_loop_is_delivered_to_the_next_consumer() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            with pytest.raises(ValueError, match="declined"):
                async with iterated(w) as consumer:
                    await decline(consumer, b"4")
            async with iterated(w) as consumer:
                async for message in consumer:
                    assert message.body == b"4"
                    break

    run_virtual(main())


def test_several_tasks_share_the_messages() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*BODIES)
            received = []

            async def work(consumer: PushConsumer) -> None:
                async for message in consumer:
                    await asyncio.sleep(0.5)
                    received.append(message.body)

            async with iterated(w) as consumer:
                workers = [asyncio.create_task(work(consumer)) for _ in range(3)]
                await w.until(lambda: len(received) == len(BODIES))
                assert asyncio.get_running_loop().time() < 5, "three concurrently, not one"
            await asyncio.gather(*workers)
            assert Counter(received) == Counter(BODIES)
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_close_in_another_task_waits_for_the_loop_body_and_ends_the_loop() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = iterated(w)
            await consumer.start()
            received = []

            async def work() -> None:
                async for message in consumer:
                    await asyncio.sleep(2)
                    received.append(message.body)

            worker = asyncio.create_task(work())
            await asyncio.sleep(3)
            await consumer.close()
            await worker
            assert received == BODIES[:2]
            assert await w.committed() == 2

    run_virtual(main())


def test_close_waits_for_a_loop_body_for_a_limited_time() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = iterated(w)
            await consumer.start()

            async def work() -> None:
                async for _ in consumer:
                    await asyncio.Event().wait()

            worker = asyncio.create_task(work())
            await asyncio.sleep(1)
            await consumer.close()
            assert asyncio.get_running_loop().time() < 13
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            assert await w.committed() == 0

    run_virtual(main())


def test_a_cancelled_wait_takes_no_message() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, iterated(w) as consumer:

            async def first() -> bytes:
                async for message in consumer:
                    return message.body
                raise AssertionError("the loop ended without a message")

            waiting = [asyncio.create_task(first()) for _ in range(3)]
            await asyncio.sleep(1)
            waiting[0].cancel()
            waiting[1].cancel()
            await w.send(b"x")
            assert await waiting[2] == b"x"
            await asyncio.gather(*waiting, return_exceptions=True)

    run_virtual(main())
