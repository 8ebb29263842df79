"""Tests of the producer for encoded messages, with a real broker on a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.calls_send import encode_batch_of, encode_message
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.encoded_producer import EncodedProducer
from kourou.errors import ClosedError, InvalidGroupError, NoRouteError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

CONFIG = ProducerConfig()
TIMEOUT_MS = 3_000


def with_producer(body: Callable[[Cluster, EncodedProducer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Cluster(seed=9) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=2)
            producer = EncodedProducer(
                "tools", cluster.namesrv_addr, config=CONFIG, runtime=cluster.runtime
            )
            async with producer:
                await body(cluster, producer)

    run_virtual(main())


def test_a_message_can_be_sent_again_under_its_unique_id() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer) -> None:
        queue = MessageQueue("T", "broker-0", 1)
        outgoing = encode_message(Message("T", b"hello"), "A" * 32)
        for offset in range(2):
            [receipt] = await producer.send(outgoing, queue=queue, timeout_ms=TIMEOUT_MS)
            assert (receipt.msg_id, receipt.queue, receipt.queue_offset) == (
                "A" * 32,
                queue,
                offset,
            )
            assert receipt.status is SendStatus.SEND_OK

        async with cluster.pull_consumer() as reader:
            found = (await reader.pull(queue, 0)).messages
        assert [(message.msg_id, message.body) for message in found] == [("A" * 32, b"hello")] * 2

    with_producer(body)


def test_a_batch_has_a_receipt_for_each_message() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer) -> None:
        messages = [encode_message(Message("T", b"%d" % n), producer.next_id()) for n in range(3)]
        batch = encode_batch_of(messages, producer.next_id(), CONFIG)

        receipts = await producer.send(batch, timeout_ms=TIMEOUT_MS)

        assert [receipt.msg_id for receipt in receipts] == [m.msg_ids[0] for m in messages]
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]

    with_producer(body)


def test_queues_are_those_of_the_topic_and_an_absent_topic_has_none() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer) -> None:
        assert [queue.queue_id for queue in await producer.queues("T")] == [0, 1]
        with pytest.raises(NoRouteError, match="Absent"):
            await producer.queues("Absent")

    with_producer(body)


def test_a_closed_producer_refuses_to_send() -> None:
    async def body(cluster: Cluster, producer: EncodedProducer) -> None:
        await producer.close()
        await producer.close()
        with pytest.raises(ClosedError, match="the producer is closed"):
            await producer.send(encode_message(Message("T", b"x"), "A"), timeout_ms=TIMEOUT_MS)

    with_producer(body)


def test_an_invalid_group_is_refused() -> None:
    with pytest.raises(InvalidGroupError):
        EncodedProducer("a b", "localhost:9876", config=CONFIG)
