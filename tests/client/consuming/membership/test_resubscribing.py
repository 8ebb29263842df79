"""A running push consumer may change its subscriptions without losing messages."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import ClosedError, FilterSyntaxError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
KINDS = pytest.mark.parametrize("is_ordered", [False, True], ids=["concurrently", "in order"])


async def send(w: Recording, *bodies: str, topic: str = TOPIC) -> None:
    """Send messages whose tag and property `kind` are their first letter."""
    async with w.cluster.producer() as producer:
        for body in bodies:
            properties = {"kind": body[0]}
            message = Message(topic, body.encode(), tags=body[0], properties=properties)
            await producer.send(message)


def consumer_of(w: Recording, *, is_ordered: bool = False) -> PushConsumer:
    consumer = w.cluster.push_consumer("g", FIRST)

    async def listen(message: MessageExt) -> None:
        w.received.append(message.body)

    (consumer.listen_orderly if is_ordered else consumer.listen)(listen)
    return consumer


@KINDS
def test_a_topic_subscribed_later_is_consumed_from_then_on(*, is_ordered: bool) -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            async with w.cluster.admin() as admin:
                await admin.create_topic("Later", queues=2)
            await send(w, "a1")
            await send(w, "b1", "b2", topic="Later")
            consumer = consumer_of(w, is_ordered=is_ordered)
            consumer.subscribe(TOPIC)
            async with consumer:
                await w.until_received(b"a1")
                consumer.subscribe("Later", tags="b")
                await w.until_received(b"a1", b"b1", b"b2", timeout_s=10)
                consumer.unsubscribe("Later")
                await asyncio.sleep(5)
                await send(w, "b3", topic="Later")
                consumer.subscribe("Later")
                await w.until_received(b"a1", b"b1", b"b2", b"b3", timeout_s=10)
                assert sorted(w.received) == [b"a1", b"b1", b"b2", b"b3"]

    run_virtual(main())


@KINDS
@pytest.mark.parametrize("kind", ["tags", "sql"])
def test_all_messages_matching_a_new_expression_are_delivered(
    *, is_ordered: bool, kind: str
) -> None:
    async def main() -> None:
        async with recording(queues=2, enable_property_filter=True) as w:

            def subscribe(letter: str) -> None:
                if kind == "tags":
                    consumer.subscribe(TOPIC, tags=letter)
                else:
                    consumer.subscribe(TOPIC, sql=f"kind = '{letter}'")

            consumer = consumer_of(w, is_ordered=is_ordered)
            subscribe("a")
            async with consumer:
                await send(w, "a1", "b1", "a2")
                await w.until_received(b"a1", b"a2")
                subscribe("c")
                subscribe("b")  # changed again at once
                await send(w, "b2", "a3", "b3", "c1")
                async with asyncio.timeout(5):
                    while not {b"b2", b"b3"} <= set(w.received):  # noqa: ASYNC110 - in virtual time
                        await asyncio.sleep(0.1)
                await asyncio.sleep(30)
            counts = Counter(w.received)
            assert max(counts.values()) == 1
            # b1 was sent before; a3 may have been delivered by the held pull.
            assert set(counts) - {b"b1", b"a3"} == {b"a1", b"a2", b"b2", b"b3"}

    run_virtual(main())


def test_messages_excluded_by_a_held_pull_are_delivered_by_the_next_expression() -> None:
    """The broker answers the held pull by the new expression, which the pull does not carry."""

    async def main() -> None:
        async with recording(queues=1) as w:
            consumer = consumer_of(w)
            consumer.subscribe(TOPIC, tags="a")
            async with consumer:
                await asyncio.sleep(5)
                await send(w, "b1", "b2")
                await asyncio.sleep(5)
                assert w.received == []
                consumer.subscribe(TOPIC, tags="b")
                await w.until_received(b"b1", b"b2", timeout_s=2)

    run_virtual(main())


def test_an_expression_that_brokers_refuse_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = consumer_of(w)
            consumer.subscribe(TOPIC, tags="a")
            async with consumer:
                with pytest.raises(FilterSyntaxError):
                    consumer.subscribe(TOPIC, sql="kind =")
                consumer.subscribe(TOPIC, sql="kind = 'b'")
                await asyncio.sleep(5)
                await send(w, "a1", "b1", "a2")
                await w.until_received(b"a1", b"a2")
            with pytest.raises(ClosedError):
                consumer.subscribe(TOPIC)

    run_virtual(main())
    assert "subscription.refused group=g topic=T reason=" in caplog.text
