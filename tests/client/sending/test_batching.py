"""Batches by size and by linger time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.client.calls_send import batch_item, encode_batch_of, encode_message
from kourou.client.config import ProducerConfig
from kourou.client.sending.batching import BATCH_MESSAGES_MAX, split_batch
from kourou.client.sending.producer import Producer
from kourou.client.sending.queue_choice import at_random
from kourou.errors import ConfigError, InvalidMessageError, TransportError, UsageError
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.message_batch import entry_size
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Body = Callable[[Cluster, Producer], Coroutine[Any, Any, None]]


def lingering(body: Body, **options: Any) -> None:
    """Run `body` with a topic T of four queues and a producer with `linger_ms=10`."""

    async def main() -> None:
        config = ProducerConfig(**({"linger_ms": 10} | options))
        async with Cluster(seed=5) as cluster, cluster.producer(config=config) as producer:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=4)
            await producer.fetch_publish_message_queues("T")
            await body(cluster, producer)

    run_virtual(main())


async def stored(cluster: Cluster) -> list[MessageExt]:
    """Return all messages of T, queue by queue."""
    messages: list[MessageExt] = []
    async with cluster.pull_consumer() as reader:
        for queue in await reader.fetch_subscribe_message_queues("T"):
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                result = await reader.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 390), max_size=30), st.integers(500, 2_000))
def test_split_batches_fit_and_contain_all_messages(sizes: list[int], size_max: int) -> None:
    messages = [Message("T", bytes(size), keys=[f"k{size}"]) for size in sizes]
    parts = split_batch(messages, size_max)

    assert [message for part in parts for message in part] == messages
    config = ProducerConfig(max_message_size_bytes=size_max)
    for part in parts:
        encode_batch_of([encode_message(one, "0" * 56) for one in part], "0" * 56, config)


def test_message_too_large_for_a_batch_is_reported_with_its_index() -> None:
    with pytest.raises(InvalidMessageError, match=r"message 1 takes 49\d bytes .* size_max .300"):
        split_batch([Message("T", b"x"), Message("T", bytes(400))], 300)
    with pytest.raises(ConfigError, match="size_max is 0"):
        split_batch([], 0)


def test_split_batch_has_at_most_the_maximum_number_of_messages() -> None:
    parts = split_batch([Message("T", b"x")] * (BATCH_MESSAGES_MAX + 1))
    assert [len(part) for part in parts] == [BATCH_MESSAGES_MAX, 1]


def test_concurrent_messages_are_batched_and_each_gets_a_receipt() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        bodies = [b"%d" % number for number in range(20)]
        receipts = await asyncio.gather(*(producer.send(Message("T", one)) for one in bodies))

        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == list(range(20))
        found = await stored(cluster)
        assert [one.body for one in found] == bodies
        assert [one.msg_id for one in found] == [receipt.msg_id for receipt in receipts]
        assert producer.stats().sent_total == 20

    lingering(body)


def test_single_message_is_sent_after_linger_ms() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        receipt = await producer.send(Message("T", b"x" * 5_000 + b"y", tags="t"), queue=None)
        assert clock() - began_s < 0.010, "compressed messages do not linger"
        began_s = clock()
        lonely = await producer.send(Message("T", b"x"))
        assert clock() - began_s >= 0.010
        ids = {one.msg_id for one in await stored(cluster)}
        assert ids == {receipt.msg_id, lonely.msg_id}

    lingering(body)


def test_full_batch_is_sent_before_linger_ms() -> None:
    async def body(_: Cluster, producer: Producer) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        sends = [producer.send(Message("T", bytes(300))) for _ in range(12)]
        receipts = await asyncio.gather(*sends)
        assert clock() - began_s < 1
        by_queue = {receipt.queue for receipt in receipts}
        assert len(by_queue) == 4, "four batches of three, one for each queue"

    size = entry_size(batch_item(encode_message(Message("T", bytes(300)), "0" * 32)))
    lingering(body, linger_ms=3_000, batch_bytes_max=3 * size)


def test_message_that_does_not_fit_starts_a_new_batch() -> None:
    async def body(_: Cluster, producer: Producer) -> None:
        bodies = [bytes(size) for size in (500, 400, 300, 200, 900)]
        receipts = await asyncio.gather(*(producer.send(Message("T", one)) for one in bodies))
        queues = [receipt.queue for receipt in receipts]
        assert queues[0] == queues[1] != queues[2] == queues[3] != queues[4]

    lingering(body, batch_bytes_max=1_200)


def test_messages_to_a_retry_topic_are_sent_alone() -> None:
    async def body(_: Cluster, producer: Producer) -> None:
        queue = MessageQueue("%RETRY%g", "broker-0", 0)
        sends = [producer.send(Message("%RETRY%g", b"again"), queue=queue) for _ in range(2)]
        assert {receipt.queue for receipt in await asyncio.gather(*sends)} == {queue}

    lingering(body)


def test_messages_with_different_queues_keys_or_timeouts_are_not_batched() -> None:
    async def body(_: Cluster, producer: Producer) -> None:
        queue = MessageQueue("T", "broker-0", 2)
        first, second, third, *keyed = await asyncio.gather(
            producer.send(Message("T", b"a"), queue=queue),
            producer.send(Message("T", b"b"), queue=queue),
            producer.send(Message("T", b"c"), queue=queue, timeout_ms=700),
            *(producer.send(Message("T", b"k"), sharding_key="order-17") for _ in range(3)),
            producer.send(Message("T", b"r"), queue=at_random()),
        )
        assert first.queue == second.queue == third.queue == queue
        assert second.queue_offset == first.queue_offset + 1
        assert len({receipt.queue for receipt in keyed[:3]}) == 1

    lingering(body)


def test_message_cancelled_while_lingering_is_not_sent() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        sends = [asyncio.create_task(producer.send(Message("T", b"%d" % n))) for n in range(3)]
        await asyncio.sleep(0.005)
        sends[1].cancel()
        await asyncio.wait(sends)
        assert [one.body for one in await stored(cluster)] == [b"0", b"2"]
        alone = asyncio.create_task(producer.send(Message("T", b"3")))
        await asyncio.sleep(0.005)
        alone.cancel()
        await asyncio.sleep(0.1)
        assert len(await stored(cluster)) == 2

    lingering(body)


def test_message_cancelled_in_flight_does_not_cancel_its_batch() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        sends = [asyncio.create_task(producer.send(Message("T", b"%d" % n))) for n in range(3)]
        await asyncio.sleep(0.0102)
        sends[0].cancel()
        done = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert [one.body for one in await stored(cluster)] == [b"0", b"1", b"2"]

    lingering(body)


def test_all_messages_of_a_failed_batch_get_its_error() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        cluster.network.cut(cluster.broker_address())
        sends = [producer.send(Message("T", b"x"), timeout_ms=300) for _ in range(3)]
        for error in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(error, TransportError)
        assert producer.stats().failed_total == 3
        cluster.network.heal(cluster.broker_address())

    lingering(body)


def test_invalid_message_does_not_affect_its_batch() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        good = asyncio.create_task(producer.send(Message("T", b"good")))
        with pytest.raises(UsageError):
            await producer.send(Message("T", b""))
        await good
        assert [one.body for one in await stored(cluster)] == [b"good"]

    lingering(body)


def test_flush_and_close_send_lingering_messages_at_once() -> None:
    async def main() -> None:
        async with Cluster(seed=5) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=1)
            clock = asyncio.get_running_loop().time
            config = ProducerConfig(linger_ms=3_000)
            async with cluster.producer(config=config) as producer:
                futures = [await producer.submit(Message("T", b"%d" % n)) for n in range(3)]
                await asyncio.sleep(0)
                began_s = clock()
                await producer.flush()
                assert all(future.done() for future in futures)
                futures.append(await producer.submit(Message("T", b"3")))
                await asyncio.sleep(0)
            assert clock() - began_s < 1
            assert [future.result().queue_offset for future in futures] == [0, 1, 2, 3]

    run_virtual(main())
