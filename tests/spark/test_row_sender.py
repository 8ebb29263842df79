"""Tests of sending rows, with real brokers and a name server on a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kourou.client.calls_send import encode_message
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.sending.encoded_producer import EncodedProducer
from kourou.errors import (
    FlushDiskTimeoutError,
    MessageIllegalError,
    NoRouteError,
    TransportError,
)
from kourou.model.message import Message, MessageExt
from kourou.spark.row_sender import UNCONFIRMED_SENDS_MAX, RowSender, SendLimits
from kourou.spark.sink_rows import SinkRow
from kourou.spark.stamps import Stamps
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Body = Callable[[Cluster, EncodedProducer, RowSender], Coroutine[Any, Any, None]]


def with_sender(
    body: Body,
    *,
    config: ProducerConfig | None = None,
    batch: int = 10,
    in_flight: int = 40,
    brokers: int = 1,
    rate_max: float | None = None,
    resends: bool = True,
    **broker: Any,
) -> None:
    """Run `body` with a topic T of two queues on each broker."""
    config = config or ProducerConfig(compress_body_over_bytes=None)
    limits = SendLimits(
        batch_messages_max=batch,
        batch_bytes_max=8_192,
        in_flight_messages_max=in_flight,
        in_flight_bytes_max=32_768,
        timeout_ms=30_000,
        unconfirmed_sends_max=UNCONFIRMED_SENDS_MAX if resends else 1,
        rate_max=rate_max,
    )

    async def main() -> None:
        async with Cluster(seed=5, brokers=brokers, **broker) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=2)
            producer = EncodedProducer(
                "spark",
                cluster.namesrv_addr,
                config=config,
                resends=resends,
                runtime=cluster.runtime,
            )
            async with producer:
                sender = RowSender(producer, config, limits, Stamps("w", 0, 3))
                try:
                    await body(cluster, producer, sender)
                finally:
                    await sender.cancel()

    run_virtual(main())


def rows(
    producer: EncodedProducer, count: int, key: Callable[[int], str | None] = lambda _: None
) -> Iterator[SinkRow]:
    for number in range(count):
        message = Message("T", b"%d" % number, properties={"k": key(number) or "-"})
        yield SinkRow(number, encode_message(message, producer.next_id()), key(number), False)


async def stored(cluster: Cluster) -> list[MessageExt]:
    """Return all messages of T, queue by queue."""
    messages = []
    config = PullConsumerConfig(pull_timeout_ms=3_000)
    async with cluster.pull_consumer(config=config) as reader:
        for queue in await reader.fetch_subscribe_message_queues("T"):
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                result = await reader.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages


def numbers(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


def test_every_row_is_stored_once_and_most_of_them_in_batches() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        await sender.add(rows(producer, 95))
        await sender.finish()

        assert sorted(numbers(await stored(cluster))) == list(range(95))
        assert (sender.sent.rows, sender.sent.requests) == (95, 10)
        assert sender.sent.body_bytes == sum(len(str(number)) for number in range(95))

    with_sender(body)


def test_nothing_is_in_flight_between_two_adds() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        await sender.add(rows(producer, 95))

        assert sender.sent.rows == 90  # the open batch of 5 waits for more
        assert len(await stored(cluster)) == 90

    with_sender(body)


def test_rows_of_one_key_keep_their_order_in_one_queue() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        await sender.add(rows(producer, 300, lambda number: f"key-{number % 7}"))
        await sender.finish()

        by_key: dict[str, list[MessageExt]] = {}
        for message in await stored(cluster):
            by_key.setdefault(message.properties["k"], []).append(message)
        assert len(by_key) == 7
        for key, messages in by_key.items():
            assert numbers(messages) == list(range(int(key[-1]), 300, 7))
            assert len({(message.broker_name, message.queue_id) for message in messages}) == 1
        assert sender.sent.requests < 40

    with_sender(body, brokers=2)


def test_large_bodies_are_compressed_and_delayed_rows_sent_alone() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        large = encode_message(Message("T", b"7" * 5_000), producer.next_id())
        later = Message("T", b"8", deliver_at_ms=cluster.runtime.clock.now_ms() + 1_000)
        delayed = encode_message(later, producer.next_id())
        await sender.add([SinkRow(0, large, None, False), SinkRow(1, delayed, None, True)])

        assert (sender.sent.rows, sender.sent.requests) == (2, 2)
        assert [message.body for message in await stored(cluster)] == [b"7" * 5_000]
        await asyncio.sleep(5)
        assert len(await stored(cluster)) == 2

    with_sender(body, config=ProducerConfig())


def test_messages_without_send_ok_are_sent_again_under_their_unique_ids() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        cluster.flusher().stall()
        adding = asyncio.create_task(sender.add(rows(producer, 10)))
        await asyncio.sleep(5.2)  # the broker has answered FLUSH_DISK_TIMEOUT
        cluster.flusher().release()
        await adding

        assert (sender.sent.rows, sender.sent.unconfirmed) == (10, 10)
        copies = await stored(cluster)
        assert sorted(numbers(copies)) == sorted([*range(10)] * 2)
        assert len({message.msg_id for message in copies}) == 10

    with_sender(body)


def test_a_task_fails_if_messages_are_never_confirmed() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        cluster.flusher().stall()
        with pytest.raises(FlushDiskTimeoutError) as caught:
            await sender.add(rows(producer, 10))
        cluster.flusher().release()

        assert "rows 0 to 9 of partition 3 of batch 0 of w (topic T)" in str(caught.value)
        assert "FLUSH_DISK_TIMEOUT to 3 sends" in str(caught.value)
        assert (sender.sent.rows, sender.sent.unconfirmed) == (0, 30)

    with_sender(body)


def test_rows_behind_a_failed_batch_of_their_queue_are_not_stored() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        too_large = encode_message(Message("T", b"9" * 20_000), producer.next_id())
        keyed = [SinkRow(100, too_large, "k", False), *rows(producer, 10, lambda _: "k")]
        with pytest.raises(MessageIllegalError, match=r"row 100 of partition 3"):
            await sender.add(keyed)

        assert await stored(cluster) == []

    with_sender(body)


def test_a_broker_that_restarts_delays_the_rows() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        await sender.add(rows(producer, 50))
        await cluster.kill_broker()
        adding = asyncio.create_task(sender.add(rows(producer, 50)))
        await asyncio.sleep(3)
        await cluster.restart_broker()
        await adding
        await sender.finish()

        assert set(numbers(await stored(cluster))) == set(range(50))
        assert sender.sent.rows == 100

    with_sender(body)


def test_an_absent_topic_is_refused_and_not_created() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        message = encode_message(Message("Absent", b"1"), producer.next_id())
        await sender.add([SinkRow(0, message, None, False)])
        with pytest.raises(NoRouteError, match=r"row 0 of partition 3 .*Absent"):
            await sender.finish()
        async with cluster.admin() as admin:
            assert "Absent" not in await admin.topic_list()

    with_sender(body)


@pytest.mark.parametrize(("rate", "count"), [(50.0, 200), (0.5, 5), (2_000.0, 1_000)])
def test_a_rate_is_never_exceeded_and_is_used_up(rate: float, count: int) -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        await sender.add(rows(producer, count // 2))
        await asyncio.sleep(100)  # Spark computes the next rows
        resumed_s = now_s()
        await sender.add(rows(producer, count - count // 2))
        await sender.finish()

        messages = await stored(cluster)
        times_ms = sorted(message.store_at_ms for message in messages)
        burst = max(1, rate / 10)
        for begin_ms in range(times_ms[0], times_ms[-1], 500):
            in_second = sum(begin_ms <= at_ms < begin_ms + 1_000 for at_ms in times_ms)
            assert in_second <= rate + 2 * burst
        assert len(messages) == count
        assert now_s() - resumed_s == pytest.approx(
            (count - count // 2) / rate, abs=burst / rate + 1
        )
        assert resumed_s - began_s == pytest.approx(100 + count // 2 / rate, abs=burst / rate + 1)

    with_sender(body, rate_max=rate)


def test_without_resends_a_lost_answer_fails_and_no_copy_is_stored() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        await sender.add(rows(producer, 10))
        cluster.flusher().stall()
        adding = asyncio.create_task(sender.add(rows(producer, 10)))
        await asyncio.sleep(1)  # the broker has the messages, and waits for its disk
        await cluster.kill_broker()
        with pytest.raises(TransportError, match=r"rows 0 to 9 of partition 3"):
            await adding
        await cluster.restart_broker()

        copies = numbers(await stored(cluster))
        assert sorted(copies) in (sorted([*range(10)] * 2), [*range(10)])
        assert sender.sent.rows == 10

    with_sender(body, resends=False)


def test_without_resends_an_answer_other_than_send_ok_fails_at_once() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        cluster.flusher().stall()
        with pytest.raises(FlushDiskTimeoutError, match="FLUSH_DISK_TIMEOUT to 1 send:"):
            await sender.add(rows(producer, 10))
        cluster.flusher().release()

        assert sorted(numbers(await stored(cluster))) == [*range(10)]

    with_sender(body, resends=False)


def test_without_resends_a_broker_that_is_not_reached_is_tried_again() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer, sender: RowSender) -> None:
        await cluster.kill_broker()
        adding = asyncio.create_task(sender.add(rows(producer, 10)))
        await asyncio.sleep(3)
        await cluster.restart_broker()
        await adding

        assert sorted(numbers(await stored(cluster))) == [*range(10)]

    with_sender(body, resends=False)
