"""A simple consumer with real brokers on a simulated network."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from kourou.client.pop_result import PoppedMessage
from kourou.model.group import ConsumeFromWhere, ConsumeType
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.running_info import ConsumeResult
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

Body = Callable[[Recording], Coroutine[Any, Any, None]]


def with_brokers(body: Body, *, brokers: int = 1, queues: int = 2) -> None:
    async def main() -> None:
        async with recording(queues=queues, brokers=brokers) as w:
            await body(w)

    run_virtual(main())


def config(**options: Any) -> SimpleConsumerConfig:
    return SimpleConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options)


def test_two_members_share_the_messages_of_two_brokers() -> None:
    async def body(w: Recording) -> None:
        await w.send(*[b"%d" % number for number in range(60)])
        received: Counter[bytes] = Counter()
        async with (
            w.cluster.simple_consumer(config=config()) as one,
            w.cluster.simple_consumer(config=config()) as two,
        ):
            for consumer in (one, two) * 30:
                consumer.subscribe(TOPIC)
                messages = await consumer.receive(4, wait_ms=0)
                received.update(message.body for message in messages)
                await consumer.ack_all(messages)
            assert len(received) == received.total() == 60
            assert await one.receive(wait_ms=120_000) == []

    with_brokers(body, brokers=2)


def test_redelivery_has_the_original_topic_and_counts() -> None:
    async def body(w: Recording) -> None:
        await w.send(b"x")
        async with w.cluster.simple_consumer(config=config()) as consumer:
            consumer.subscribe(TOPIC)
            (first,) = await consumer.receive(invisible_ms=5_000)
            (second,) = await consumer.receive(wait_ms=15_000)
            assert (first.receipt.is_retry, second.receipt.is_retry) == (False, True)
            await consumer.give_back(second)
            (third,) = await consumer.receive(wait_ms=15_000)
            assert [third.topic, third.reconsume_times, third.body] == [TOPIC, 2, b"x"]
            await consumer.ack(third)
            assert await consumer.receive(wait_ms=120_000) == []

    with_brokers(body)


def test_names_are_plain_in_a_namespace() -> None:
    async def body(w: Recording) -> None:
        async with w.cluster.producer(config=ProducerConfig(namespace="ns")) as producer:
            await producer.send(Message("Jobs", b"1"))
            await producer.send(Message("Jobs", b"2"))
        async with w.cluster.simple_consumer(config=config(namespace="ns")) as consumer:
            consumer.subscribe("Jobs")
            received: list[PoppedMessage] = []
            while len(received) < 2:
                received += await consumer.receive(wait_ms=10_000)
            first, second = received
            await consumer.ack_all([first])
            await consumer.give_back(second)
            (again,) = await consumer.receive(wait_ms=15_000)
            assert (again.topic, again.receipt.is_retry) == ("Jobs", True)
            await consumer.ack_all([again])
            assert await consumer.receive(wait_ms=120_000) == []
        async with w.cluster.admin() as admin:
            assert "%RETRY%ns%poppers_ns%Jobs" in await admin.topic_list()

    with_brokers(body)


def test_retried_message_is_acknowledged_alone_in_a_namespace() -> None:
    async def body(w: Recording) -> None:
        async with w.cluster.producer(config=ProducerConfig(namespace="ns")) as producer:
            await producer.send(Message("Jobs", b"1"))
        async with w.cluster.simple_consumer(config=config(namespace="ns")) as consumer:
            consumer.subscribe("Jobs")
            (message,) = await consumer.receive(wait_ms=10_000)
            await consumer.give_back(message)
            (again,) = await consumer.receive(wait_ms=15_000)
            await consumer.change_invisible(again, 3_000)
            (last,) = await consumer.receive(wait_ms=15_000)
            await consumer.ack(last)
            assert await consumer.receive(wait_ms=120_000) == []

    with_brokers(body)


def test_ordered_queue_waits_for_the_first_message() -> None:
    async def body(w: Recording) -> None:
        await w.send(b"1", b"2", b"3")
        async with w.cluster.simple_consumer(config=config(ordered=True)) as consumer:
            consumer.subscribe(TOPIC)
            (first,) = await consumer.receive(1, wait_ms=5_000)
            assert await consumer.receive(1, wait_ms=3_000) == []
            await consumer.give_back(first)
            (again,) = await consumer.receive(1, wait_ms=5_000)
            assert (again.body, again.reconsume_times) == (b"1", 1)
            await consumer.ack(again)
            rest = await consumer.receive(wait_ms=5_000)
            assert [message.body for message in rest] == [b"2", b"3"]
            await consumer.ack_all(rest)
            assert await consumer.receive(wait_ms=120_000) == []

    with_brokers(body, queues=1)


def test_new_group_starts_at_the_end_by_default() -> None:
    async def body(w: Recording) -> None:
        await w.send(*[b"old"] * 4)
        async with w.cluster.simple_consumer(config=SimpleConsumerConfig()) as consumer:
            consumer.subscribe(TOPIC)
            started = await consumer.receive(wait_ms=1_000)
            await consumer.ack_all(started)
            await w.send(b"new")
            (message,) = await consumer.receive(wait_ms=10_000)
            assert message.body == b"new"

    with_brokers(body, queues=1)


def test_receive_survives_a_crash_of_the_broker() -> None:
    async def body(w: Recording) -> None:
        async with w.cluster.simple_consumer(config=config()) as consumer:
            consumer.subscribe(TOPIC)
            waiting = asyncio.create_task(consumer.receive(wait_ms=60_000))
            await asyncio.sleep(2)
            await w.cluster.crash_broker()
            await asyncio.sleep(2)
            await w.cluster.restart_broker()
            await w.send(b"x")
            (message,) = await waiting
            await consumer.ack(message)
            assert await consumer.receive(wait_ms=120_000) == []

    with_brokers(body)


def test_administrators_see_members_that_pop() -> None:
    async def body(w: Recording) -> None:
        await w.send(b"x")
        async with (
            w.cluster.simple_consumer("g", config=config()) as consumer,
            w.cluster.admin() as admin,
        ):
            consumer.subscribe(TOPIC, "a || b")
            await consumer.receive()
            await asyncio.sleep(1)
            found = await admin.consumer_connection("g")
            assert found.consume_type is ConsumeType.POP
            (member,) = found.connections
            info = await admin.running_info("g", member.client_id, stack=True)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_POP"
            assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
            assert [one.sub_string for one in info.subscriptions] == ["a || b"]
            assert (list(info.statuses), dict(info.queues)) == ([TOPIC], {})
            assert info.jstack

    with_brokers(body)


def test_administrators_see_the_messages_that_a_member_has_not_settled() -> None:
    async def body(w: Recording) -> None:
        await w.send(*[b"%d" % number for number in range(6)])
        async with (
            w.cluster.simple_consumer("g", config=config()) as consumer,
            w.cluster.admin() as admin,
        ):
            consumer.subscribe(TOPIC)
            held: list[PoppedMessage] = []
            while len(held) < 6:
                held += await consumer.receive(invisible_ms=10_000)
            await asyncio.sleep(1)
            (member,) = (await admin.consumer_connection("g")).connections

            async def waiting() -> int:
                info = await admin.running_info("g", member.client_id)
                ((queue, found),) = info.pop_queues.items()
                assert queue == MessageQueue(TOPIC, held[0].broker_name, -1)
                assert found.last_pop_timestamp > 0
                assert not found.dropped
                return found.wait_ack_count

            assert await waiting() == 6
            await consumer.ack(held[0])
            await consumer.ack_all(held[1:3])
            await consumer.dead_letter(held[3], "no")
            assert await waiting() == 2
            await consumer.change_invisible(held[4], 30_000)
            await asyncio.sleep(12)
            assert await waiting() == 1
            consumer.unsubscribe(TOPIC)
            consumer.subscribe("Other")
            info = await admin.running_info("g", member.client_id)
            assert info.pop_queues == {}

    with_brokers(body)


def test_message_is_not_consumed_by_a_member_without_a_listener() -> None:
    async def body(w: Recording) -> None:
        await w.send(b"x")
        async with (
            w.cluster.simple_consumer("g", config=config()) as consumer,
            w.cluster.admin() as admin,
        ):
            consumer.subscribe(TOPIC)
            (message,) = await consumer.receive()
            await asyncio.sleep(1)
            (member,) = (await admin.consumer_connection("g")).connections
            result = await admin.consume_directly("g", member.client_id, message.offset_msg_id)
            assert result.consume_result is ConsumeResult.LATER
            assert "receives messages itself" in (result.remark or "")

    with_brokers(body)


def test_receives_take_the_fast_path_of_the_broker() -> None:
    async def body(w: Recording) -> None:
        declined = w.cluster.broker().components.popping.fast_pops.declined
        async with w.cluster.simple_consumer(config=config()) as consumer:
            consumer.subscribe(TOPIC)
            for _ in range(3):
                await w.send(b"1", b"2")
                received = await consumer.receive(invisible_ms=30_000)
                await consumer.ack(received[0])
                await consumer.ack_all(received[1:])
        del declined["cut off"]
        assert declined == {"group": 1}, "only the first pop, which creates the group"

    with_brokers(body)
