"""Consumers of all kinds that subscribe by properties get the matching messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.pull_consumer import PullStatus
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import (
    FilterSyntaxError,
    RequestNotSupportedError,
    UsageError,
)
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

QUEUE = MessageQueue(TOPIC, "broker-0", 0)
FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


@asynccontextmanager
async def filtering(*, queues: int = 1, brokers: int = 1) -> AsyncIterator[Recording]:
    async with recording(queues=queues, brokers=brokers, enable_property_filter=True) as w:
        yield w


async def send(w: Recording, *amounts: int | str) -> None:
    """Send messages with these values as property `amount` and as body."""
    async with w.cluster.producer() as producer:
        for amount in amounts:
            text = str(amount)
            await producer.send(Message(TOPIC, text.encode(), properties={"amount": text}))


def listening(w: Recording, sql: str, *, group: str = "g") -> PushConsumer:
    consumer = w.cluster.push_consumer(group, FIRST)
    consumer.subscribe(TOPIC, sql=sql)

    @consumer.listen
    async def listen(message: MessageExt) -> None:
        w.received.append(message.body)

    return consumer


def test_a_listener_gets_matching_messages_only() -> None:
    async def main() -> None:
        async with filtering(queues=4) as w:
            await send(w, *range(20))
            async with listening(w, "amount > 15 OR amount BETWEEN 2 AND 3"):
                await w.until_received(b"16", b"17", b"18", b"19", b"2", b"3")
                await send(w, 30, 1, 3)
                await w.until_received(b"30", b"3", b"3")
                await asyncio.sleep(20)
            assert Counter(w.received) == Counter(
                [b"16", b"17", b"18", b"19", b"2", b"3", b"30", b"3"]
            )

    run_virtual(main())


def test_messages_that_do_not_match_are_done_for_the_group() -> None:
    async def main() -> None:
        async with filtering() as w:
            await send(w, 1, 9, 2, 3)
            async with listening(w, "amount > 5"):
                await w.until_received(b"9")
                await asyncio.sleep(1)
            assert await w.committed("g") == 4

    run_virtual(main())


def test_a_failed_message_of_a_filtered_topic_is_redelivered() -> None:
    async def main() -> None:
        async with filtering() as w:
            consumer = w.cluster.push_consumer("g", FIRST)
            consumer.subscribe(TOPIC, sql="amount = 7")
            tries: list[int] = []

            @consumer.listen
            async def listen(message: MessageExt) -> None:
                tries.append(message.reconsume_times)
                if len(tries) == 1:
                    raise ValueError("not yet")

            async with consumer:
                await send(w, 7)
                await w.until(lambda: len(tries) == 2)
            assert tries == [0, 1]

    run_virtual(main())


def test_iteration_and_polling_filter_too() -> None:
    async def main() -> None:
        async with filtering() as w:
            await send(w, 1, 9, 2, 8)
            consumer = w.cluster.push_consumer("g", FIRST)
            consumer.subscribe(TOPIC, sql="amount > 5")
            async with consumer:
                loop = aiter(consumer)
                assert [(await anext(loop)).body for _ in range(2)] == [b"9", b"8"]

            poller = w.cluster.pull_consumer("p")
            async with poller:
                await poller.assign([QUEUE], sql="amount < 5")
                await poller.seek_to_beginning(QUEUE)
                polled = [one.body for one in await poller.poll(5_000)]
                assert polled == [b"1", b"2"]

    run_virtual(main())


def test_a_subscribed_poller_is_filtered_by_its_heartbeat() -> None:
    async def main() -> None:
        async with filtering() as w:
            poller = w.cluster.pull_consumer("p")
            poller.subscribe(TOPIC, sql="amount > 5")
            async with poller:
                await w.until(lambda: poller.queues == [QUEUE])
                await send(w, 1, 9)
                got = [one.body for one in await poller.poll(30_000)]
                assert got == [b"9"]

    run_virtual(main())


def test_a_pull_carries_its_own_expression() -> None:
    async def main() -> None:
        async with filtering() as w, w.cluster.pull_consumer() as reader:
            await send(w, 1, 9)
            result = await reader.pull(QUEUE, 0, sql="amount > 5")
            assert [one.body for one in result.messages] == [b"9"]
            result = await reader.pull(QUEUE, 0, sql="amount > 50")
            assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MSG, 2)

    run_virtual(main())


def test_a_malformed_expression_is_refused_with_its_position_before_any_request() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.cluster.push_consumer("g")
            with pytest.raises(FilterSyntaxError, match=r"at character 9") as caught:
                consumer.subscribe(TOPIC, sql="amount > > 5")
            assert caught.value.position == 9
            with pytest.raises(FilterSyntaxError, match="ignores the text behind b"):
                consumer.subscribe(TOPIC, sql="b LIKE 'x%'")
            with pytest.raises(UsageError, match="pass only one"):
                consumer.subscribe(TOPIC, tags="a", sql="b = 'x'")

    run_virtual(main())


def test_start_fails_if_brokers_have_filters_disabled() -> None:
    async def main() -> None:
        async with recording() as w:
            with pytest.raises(
                RequestNotSupportedError, match="does not support consumer to filter"
            ):
                async with listening(w, "amount > 5"):
                    pass
            async with w.cluster.pull_consumer() as reader:
                with pytest.raises(
                    RequestNotSupportedError, match="switch on enablePropertyFilter"
                ):
                    await reader.pull(QUEUE, 0, sql="amount > 5")

    run_virtual(main())


def test_a_poller_does_not_start_if_filters_are_disabled() -> None:
    async def main() -> None:
        async with recording() as w:
            poller = w.cluster.pull_consumer("p")
            poller.subscribe(TOPIC, sql="amount > 5")
            with pytest.raises(
                RequestNotSupportedError, match="does not support consumer to filter"
            ):
                await poller.start()
            async with w.cluster.pull_consumer("p") as assigned:
                with pytest.raises(RequestNotSupportedError, match="does not support"):
                    await assigned.assign([QUEUE], sql="amount > 5")
                await assigned.assign([QUEUE])

    run_virtual(main())


def test_poll_raises_if_brokers_refuse_a_later_filter() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.pull_consumer("p") as poller:
            polling = None
            for tags in (None, "*"):
                if tags is not None:
                    poller.subscribe(TOPIC, tags)
                    await w.until(lambda: poller.queues == [QUEUE])
                    polling = asyncio.create_task(poller.poll(30_000))
                    await asyncio.sleep(1)
                poller.subscribe(TOPIC, sql="amount > 5")
                with pytest.raises(RequestNotSupportedError, match="does not support"):
                    await (poller.poll(30_000) if polling is None else polling)
                assert asyncio.get_running_loop().time() < 20, "it is reported immediately"
            await send(w, 1)
            assert [one.body for one in await poller.poll(30_000)] == [b"1"], "as before"

    run_virtual(main())


def test_a_later_filter_of_a_poller_applies_once_brokers_have_checked_it() -> None:
    async def main() -> None:
        async with filtering() as w, w.cluster.pull_consumer("p") as poller:
            poller.subscribe(TOPIC, sql="amount > 5")
            await w.until(lambda: poller.queues == [QUEUE])
            await send(w, 1, 9)
            assert [one.body for one in await poller.poll(30_000)] == [b"9"]
            poller.subscribe(TOPIC, sql="amount > 50")
            poller.subscribe(TOPIC, "*")  # the last call wins
            await asyncio.sleep(1)
            await send(w, 2)
            assert [one.body for one in await poller.poll(30_000)] == [b"2"]
            poller.subscribe(TOPIC, sql="amount > 50")
            poller.unsubscribe(TOPIC)
            await w.until(lambda: poller.queues == [])
            await asyncio.sleep(60)
            assert poller.queues == []

    run_virtual(main())


def test_a_restarted_broker_receives_the_filter_again() -> None:
    async def main() -> None:
        async with filtering() as w:
            async with listening(w, "amount > 5"):
                await send(w, 9)
                await w.until_received(b"9")
                await w.cluster.kill_broker()
                await w.cluster.restart_broker()
                await send(w, 1, 8)
                await w.until_received(b"8")
            assert w.received == [b"9", b"8"]

    run_virtual(main())


def test_a_broker_older_than_filters_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with filtering() as w, w.cluster.pull_consumer() as reader:
            await send(w, 9)
            monkeypatch.setattr("kourou.client.calls_consume.FILTERS_SINCE_VERSION", 10_000)
            with pytest.raises(RequestNotSupportedError, match=r"older than 4\.1"):
                await reader.pull(QUEUE, 0, sql="amount > 5")
            with pytest.raises(RequestNotSupportedError, match="upgrade it"):
                async with listening(w, "amount > 5"):
                    pass
            assert (await reader.pull(QUEUE, 0, tags="*")).messages

    run_virtual(main())
