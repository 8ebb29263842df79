"""Deliveries are explained from what brokers report, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient, DeliveryState, Explanation
from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.consumer_config import PushConsumerConfig, SimpleConsumerConfig
from kourou.errors import TopicNotFoundError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

FIRST = ConsumeFromWhere.FIRST_OFFSET
Body = Callable[[Recording, AdminClient], Coroutine[Any, Any, None]]


def with_broker(body: Body) -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            await body(w, admin)

    run_virtual(main())


async def explain(admin: AdminClient, offset: int, group: str) -> Explanation:
    message = await admin.message_at(MessageQueue(TOPIC, "broker-0", 0), offset)
    (found,) = await admin.explain_message(message, group)
    return found


async def state(admin: AdminClient, offset: int, group: str) -> DeliveryState:
    return (await explain(admin, offset, group)).state


def test_message_is_followed_from_its_pop_to_its_retry_and_ack() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await w.send(b"0", b"1")
        config = SimpleConsumerConfig(consume_from_where=FIRST)
        async with w.cluster.simple_consumer("g", config) as consumer:
            consumer.subscribe(TOPIC)
            (first,) = await consumer.receive(1, invisible_ms=10_000)
            assert await state(admin, 0, "g") is DeliveryState.IN_FLIGHT
            waiting = await explain(admin, 1, "g")
            assert waiting.text == "it is the next message of its queue"
            await consumer.ack(first)
            assert await state(admin, 0, "g") is DeliveryState.CONSUMED
            await consumer.receive(1, invisible_ms=5_000)
            await asyncio.sleep(7)
            retry = await explain(admin, 1, "g")
            assert retry.text == "retry 1 of 16 waits in %RETRY%g_T"
            (second,) = await consumer.receive(invisible_ms=5_000, wait_ms=20_000)
            assert "retry 1 of 16 is in flight" in (await explain(admin, 1, "g")).text
            await consumer.ack(second)
            assert (await explain(admin, 1, "g")).text == "retry 1 of 16 was consumed"

    with_broker(body)


def test_failed_message_of_a_push_consumer_is_due_and_then_dead() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        async def listen(message: MessageExt) -> None:
            if message.body == b"dead":
                raise DeadLetter("no such account")
            if not message.reconsume_times:
                raise RetryLater(level=6)

        await w.send(b"dead", b"again")
        consumer = w.cluster.push_consumer("g", PushConsumerConfig(consume_from_where=FIRST))
        consumer.subscribe(TOPIC)
        consumer.listen(listen)
        async with consumer:
            await asyncio.sleep(8)
            dead = await explain(admin, 0, "g")
            assert dead.state is DeliveryState.DEAD_LETTER
            assert dead.text.endswith(": no such account")
            assert "retry 1 of 16 is due at" in (await explain(admin, 1, "g")).text
            await asyncio.sleep(150)
            assert (await explain(admin, 1, "g")).text == "retry 1 of 16 was consumed"

    with_broker(body)


def test_queue_and_filter_of_live_members_are_considered() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        async def listen(_: MessageExt) -> None:
            await asyncio.sleep(1_000)

        async with w.cluster.producer() as producer:
            for tag in ("eu", "us", "eu"):
                await producer.send(Message(TOPIC, b"x", tags=tag))
        consumer = w.cluster.push_consumer("g", PushConsumerConfig(consume_from_where=FIRST))
        consumer.subscribe(TOPIC, "eu")
        consumer.listen(listen)
        async with consumer:
            await asyncio.sleep(10)
            assert await state(admin, 1, "g") is DeliveryState.FILTERED
            waiting = await explain(admin, 0, "g")
            assert f"the queue is assigned to {consumer.client_id}" in waiting.reasons
            assert "a member has pulled it and not acknowledged it" in waiting.reasons
            await consumer_ends(consumer)
        offline = await explain(admin, 0, "g")
        assert offline.reasons == ("the group has no live member",)

    async def consumer_ends(consumer: Any) -> None:
        consumer.abort()
        await asyncio.sleep(1)

    with_broker(body)


def test_groups_of_a_topic_are_explained_or_one_that_does_not_exist() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await w.send(b"x")
        message = await admin.message_at(MessageQueue(TOPIC, "broker-0", 0), 0)
        assert await admin.explain_message(message) == []
        (missing,) = await admin.explain_message(message, "nobody")
        assert missing.state is DeliveryState.NO_GROUP
        for group in ("a", "b"):
            config = SimpleConsumerConfig(consume_from_where=FIRST)
            async with w.cluster.simple_consumer(group, config) as consumer:
                consumer.subscribe(TOPIC)
                await consumer.receive()
        found = await admin.explain_message(message)
        assert [(one.group, one.state) for one in found] == [
            ("a", DeliveryState.IN_FLIGHT),
            ("b", DeliveryState.IN_FLIGHT),
        ]
        message.broker_name = "other"
        with pytest.raises(TopicNotFoundError, match="is not on other, but on: broker-0"):
            await admin.explain_message(message)

    with_broker(body)


def test_message_that_is_not_in_its_topic_yet_is_explained() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await w.send(b"x")
        await admin.create_topic("Other", queues=1)
        async with w.cluster.producer() as producer:
            delayed = await producer.send(Message(TOPIC, b"d", delay_level=3))
            timed = await producer.send(Message(TOPIC, b"t", deliver_at_ms=now_ms(w) + 60_000))
            for receipt, due_ms in ((delayed, 10_000), (timed, 60_000)):
                found = await admin.explain_missing(TOPIC, receipt.msg_id)
                assert found is not None
                assert found.state is DeliveryState.NOT_DUE
                due = int(found.text.rpartition(" ")[2])
                assert abs(due - now_ms(w) - due_ms) < 1_000
            assert await admin.explain_missing("Other", delayed.msg_id) is None
            assert await admin.explain_missing(TOPIC, "no-such-id") is None

    def now_ms(w: Recording) -> int:
        return w.cluster.runtime.clock.now_ms()

    with_broker(body)
