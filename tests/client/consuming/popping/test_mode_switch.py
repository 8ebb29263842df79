"""Groups whose brokers say that a topic is popped or pulled, while the members run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.broker.popping.pop_config import PopConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import Message, MessageExt
from kourou.model.topic import retry_topic
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

Body = Callable[[Recording], Coroutine[Any, Any, None]]


def with_brokers(body: Body, *, brokers: int = 1, queues: int = 4, **options: Any) -> None:
    async def main() -> None:
        async with recording(queues=queues, brokers=brokers, **options) as w:
            await body(w)

    run_virtual(main())


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def queue_ids(consumer: PushConsumer) -> set[int]:
    return {queue.queue_id for queue in consumer.queues if queue.topic == TOPIC}


async def set_mode(w: Recording, *, is_pop: bool) -> None:
    async with w.cluster.admin() as admin:
        await admin.set_request_mode(TOPIC, "consumers", is_pop=is_pop)


def test_member_pops_a_topic_that_its_broker_says_is_popped() -> None:
    async def body(w: Recording) -> None:
        await set_mode(w, is_pop=True)
        async with w.consumer(client_rebalance=False) as consumer:
            assert queue_ids(consumer) == {-1}
            await w.send(*bodies(50))
            await w.until_received(*bodies(50))
            await asyncio.sleep(120)
            assert len(w.received) == 50
            assert {queue.topic for queue in consumer.queues} == {TOPIC, retry_topic("consumers")}

    with_brokers(body, brokers=2)


def test_member_changes_from_pull_to_pop_and_back_without_duplicates() -> None:
    async def body(w: Recording) -> None:
        async with w.consumer(client_rebalance=False) as consumer:
            assert queue_ids(consumer) == {0, 1, 2, 3}
            await w.send(*bodies(20))
            await w.until_received(*bodies(20))
            await set_mode(w, is_pop=True)
            await w.until(lambda: queue_ids(consumer) == {-1}, 5)  # the members are notified
            await w.send(*bodies(20, 20))
            await w.until_received(*bodies(20, 20))
            await set_mode(w, is_pop=False)
            await w.until(lambda: queue_ids(consumer) == {0, 1, 2, 3})
            await w.send(*bodies(20, 40))
            await w.until_received(*bodies(20, 40))
            await asyncio.sleep(120)
            assert sorted(w.received, key=int) == bodies(60)

    with_brokers(body)


def test_message_in_process_while_the_mode_changes_is_settled_once() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(45)

        await set_mode(w, is_pop=True)
        async with w.consumer(work, client_rebalance=False) as consumer:
            await w.send(b"x")
            await w.until_received(b"x")
            await set_mode(w, is_pop=False)
            await w.until(lambda: queue_ids(consumer) == {0, 1, 2, 3})
            await asyncio.sleep(180)
            assert w.received == [b"x"]

    with_brokers(body)


@pytest.mark.parametrize("is_v2", [False, True])
def test_pulling_members_consume_what_failed_while_the_group_popped(is_v2: bool) -> None:
    async def body(w: Recording) -> None:
        def fail(_: MessageExt) -> None:
            raise ValueError("not yet")

        async with w.consumer(fail, mode="pop"):
            await w.send(*bodies(4))
            await w.until_received(*bodies(4))
        w.deliveries.clear()
        await asyncio.sleep(30)  # they are in the pop retry topic now
        async with w.consumer() as consumer:
            await w.until(lambda: len({one.body for one in w.deliveries}) == 4)
            assert {one.topic for one in w.deliveries} == {TOPIC}
            names = {queue.topic for queue in consumer.queues}
            separator = "+" if is_v2 else "_"
            assert f"%RETRY%consumers{separator}{TOPIC}" in names
            consumer.unsubscribe(TOPIC)
            await w.until(
                lambda: {one.topic for one in consumer.queues} == {retry_topic("consumers")}
            )

    with_brokers(body, pop=PopConfig(enable_retry_topic_v2=is_v2))


def test_popped_message_that_fails_as_a_pulled_one_keeps_its_topic() -> None:
    async def body(w: Recording) -> None:
        def fail(message: MessageExt) -> None:
            if message.reconsume_times < 3:
                raise ValueError("not yet")

        async with w.consumer(fail, mode="pop"):
            await w.send(b"x")
            await w.until_received(b"x")
        await asyncio.sleep(30)
        async with w.consumer(fail):
            await w.until(lambda: w.deliveries[-1].reconsume_times >= 3, 300)
            assert {one.topic for one in w.deliveries} == {TOPIC}

    with_brokers(body)


def test_popping_member_consumes_what_failed_while_the_group_pulled() -> None:
    async def body(w: Recording) -> None:
        def fail(_: MessageExt) -> None:
            raise ValueError("not yet")

        async with w.consumer(fail):
            await w.send(*bodies(3))
            await w.until_received(*bodies(3))
        w.received.clear()
        async with w.consumer(mode="pop"):
            await w.until_received(*bodies(3))
            await asyncio.sleep(60)
            assert sorted(w.received) == bodies(3)

    with_brokers(body)


def test_members_of_both_modes_lose_nothing_while_modes_flip() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(0.02)

        members = [
            w.consumer(work, client_rebalance=False, instance_name=f"m{number}")
            for number in range(3)
        ]
        async with members[0], members[1], members[2]:

            async def flip() -> None:
                for number in range(6):
                    await asyncio.sleep(17)
                    await set_mode(w, is_pop=number % 2 == 0)

            flipping = asyncio.create_task(flip())
            async with w.cluster.producer() as producer:
                for body_ in bodies(1_000):
                    await producer.send(Message(TOPIC, body_))
                    await asyncio.sleep(0.1)
            await flipping
            await w.until(lambda: len(set(w.received)) == 1_000, 300)
            await asyncio.sleep(200)
        counts = Counter(w.received)
        assert len(counts) == 1_000
        duplicates = counts.total() - 1_000
        assert duplicates < 30, duplicates

    with_brokers(body, brokers=2)


def test_members_that_come_go_and_are_killed_lose_nothing_while_modes_flip() -> None:
    async def body(w: Recording) -> None:
        handled = Counter[bytes]()
        chance = random.Random(7)
        names = (f"m{number}" for number in range(100))

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(0.02)
            handled[message.body] += 1

        async def joined() -> PushConsumer:
            options: dict[str, Any] = {"client_rebalance": False, "pop_invisible_ms": 10_000}
            consumer = w.consumer(work, instance_name=next(names), **options)
            await consumer.start()
            return consumer

        members = [await joined() for _ in range(3)]

        async def churn() -> None:
            for number in range(8):
                await set_mode(w, is_pop=number % 2 == 0)
                await asyncio.sleep(chance.uniform(1, 5))
                at = chance.randrange(3)
                if number % 2:
                    members[at].abort()
                else:
                    await members[at].close()
                members[at] = await joined()

        churning = asyncio.create_task(churn())
        async with w.cluster.producer() as producer:
            for one in bodies(500):
                await producer.send(Message(TOPIC, one))
                await asyncio.sleep(0.05)
        await churning
        await w.until(lambda: len(handled) == 500, 300)
        await asyncio.sleep(60)
        for member in members:
            await member.close()
        assert handled.total() - len(handled) < 100

    with_brokers(body, brokers=2)


def test_ordered_member_pulls_whatever_its_broker_says() -> None:
    async def body(w: Recording) -> None:
        await set_mode(w, is_pop=True)
        consumer = w.cluster.push_consumer("consumers")
        consumer.subscribe(TOPIC)
        received: list[bytes] = []
        consumer.listen_orderly(lambda one: received.append(one.body))
        async with consumer:
            assert queue_ids(consumer) == {0, 1, 2, 3}
            await w.send(*bodies(8))
            await w.until(lambda: len(received) == 8)

    with_brokers(body)
