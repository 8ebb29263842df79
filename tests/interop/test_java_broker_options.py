"""Tests of options of Kourou's clients with the Java broker 5.5.0.

Compressions, binary headers, TLS, sharding keys, batches by linger.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from kourou import (
    CompressionType,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    SendAttempt,
    SendOutcome,
    SerializeType,
    TlsClientConfig,
)
from kourou.protocol.hashing import java_string_hash
from tests.interop.clients import Client
from tests.interop.peer import JavaServer

TLS = TlsClientConfig(is_server_verified=False)  # the Java broker generates a certificate


async def _consume(namesrv_addr: str, group: str, topic: str, count: int) -> list[MessageExt]:
    """Return the first `count` messages that a new group gets."""
    received: list[MessageExt] = []
    config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PullConsumer(group, namesrv_addr, config=config)
    consumer.subscribe(topic)
    async with consumer, asyncio.timeout(60):
        while len(received) < count:
            received += await consumer.poll(10_000)
    return received


@pytest.mark.parametrize("kind", list(CompressionType), ids=lambda kind: kind.name)
def test_compressed_body_arrives_unchanged(
    java_client: Client, java_server: JavaServer, kind: CompressionType
) -> None:
    topic = f"Compressed-{kind.name}"
    bodies = [b"short", b"x" * 100_000, bytes(range(256)) * 64]

    async def run() -> None:
        config = ProducerConfig(compress_type=kind)
        async with Producer("compressing", java_server.namesrv_addr, config=config) as producer:
            for number, body in enumerate(bodies):
                message = Message(topic, body, keys=[str(number)], properties={"number": "0"})
                await producer.send(message, timeout_ms=15_000)
        received = await _consume(java_server.namesrv_addr, f"by-{kind.name}", topic, len(bodies))
        assert {m.keys[0]: m.body for m in received} == {
            str(number): body for number, body in enumerate(bodies)
        }
        assert {m.keys[0]: m.store_size < len(m.body) for m in received} == {
            "0": False, "1": True, "2": True
        }  # fmt: skip

    asyncio.run(run())
    lines = java_client.run(
        "consume", java_server.namesrv_addr, f"java-{kind.name}", topic, "*", len(bodies), 0, 60
    )
    sizes = {line[1]: int(line[6]) for line in lines if line[0] == "got"}
    assert sizes == {str(number): len(body) for number, body in enumerate(bodies)}


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", list(SerializeType), ids=lambda kind: kind.name)
def test_messages_are_sent_retried_and_committed(
    java_server: JavaServer, kind: SerializeType, tls: TlsClientConfig | None
) -> None:
    topic = f"Over-{kind.name}-{'tls' if tls else 'plain'}"
    namesrv_addr, group = java_server.namesrv_addr, topic.lower()
    deliveries: dict[str, list[int]] = defaultdict(list)

    async def run() -> None:
        done = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            deliveries[message.keys[0]].append(message.reconsume_times)
            if message.keys[0] == "key-1" and message.reconsume_times == 0:
                raise RuntimeError("not yet")
            if len(deliveries) == 4 and len(deliveries["key-1"]) == 2:
                done.set()

        sending = ProducerConfig(tls=tls, serialize_type=kind)
        async with Producer(group, namesrv_addr, config=sending) as producer:
            for number in range(4):
                message = Message(topic, b"body", tags="ä", keys=[f"key-{number}"])
                await producer.send(message, timeout_ms=15_000)
        config = PushConsumerConfig(
            tls=tls,
            serialize_type=kind,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            route_refresh_interval_ms=1_000,  # finds the retry topic of a new group sooner
        )
        consumer = PushConsumer(group, namesrv_addr, config=config)
        consumer.subscribe(topic, tags="ä")
        consumer.listen(listen)
        async with consumer:
            await asyncio.wait_for(done.wait(), 60)
        reading = PullConsumerConfig(tls=tls, serialize_type=kind)
        async with PullConsumer(group, namesrv_addr, config=reading) as reader:
            queues = await reader.fetch_subscribe_message_queues(topic)
            assert sum([await reader.committed(queue) or 0 for queue in queues]) == 4

    asyncio.run(run())
    assert deliveries == {f"key-{number}": [0] for number in range(4)} | {"key-1": [0, 1]}


def test_messages_of_one_key_keep_their_order_in_one_queue(java_server: JavaServer) -> None:
    namesrv_addr = java_server.namesrv_addr

    async def run() -> None:
        async with Producer("ordering", namesrv_addr) as producer:
            await producer.send(Message("Keyed", b"first", keys=["-"]), timeout_ms=15_000)
            queues = await producer.fetch_publish_message_queues("Keyed")
            for number in range(24):
                key = f"customer-{number % 3}"
                receipt = await producer.send(
                    Message("Keyed", str(number).encode(), keys=[key]), sharding_key=key
                )
                assert receipt.queue == queues[abs(java_string_hash(key)) % len(queues)]
        by_key: dict[str, list[MessageExt]] = defaultdict(list)
        for message in await _consume(namesrv_addr, "keyed", "Keyed", 25):
            by_key[message.keys[0]].append(message)
        for remainder in range(3):
            messages = sorted(by_key[f"customer-{remainder}"], key=lambda m: m.queue_offset)
            assert [int(m.body) for m in messages] == list(range(remainder, 24, 3))
            assert {m.properties["__SHARDINGKEY"] for m in messages} == {f"customer-{remainder}"}

    asyncio.run(run())


class _Attempts:
    """Counts the requests of a producer, and the messages in them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def before_send(self, attempt: SendAttempt) -> None:
        self.sizes.append(len(attempt.messages))

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None: ...


def test_lingering_messages_are_sent_in_batches_with_their_own_offsets(
    java_server: JavaServer,
) -> None:
    namesrv_addr = java_server.namesrv_addr
    attempts = _Attempts()

    async def send(producer: Producer, numbers: Sequence[int]) -> set[tuple[str, int, int]]:
        messages = [Message("Lingering", b"%d" % n, keys=[str(n)]) for n in numbers]
        futures = [await producer.submit(message, timeout_ms=15_000) for message in messages]
        receipts = await asyncio.gather(*futures)
        return {(r.msg_id, r.queue.queue_id, r.queue_offset) for r in receipts}

    async def run() -> None:
        config = ProducerConfig(linger_ms=50)
        async with Producer("lingering", namesrv_addr, config=config, hooks=[attempts]) as producer:
            await send(producer, [0])  # creates the topic
            attempts.sizes.clear()
            sent = await send(producer, range(1, 101))
        assert sum(attempts.sizes) == 100
        assert len(attempts.sizes) <= 20
        received = await _consume(namesrv_addr, "lingered", "Lingering", 101)
        stored = {(m.msg_id, m.queue_id, m.queue_offset): m for m in received}
        assert sorted(int(stored[place].body) for place in sent) == list(range(1, 101))

    asyncio.run(run())
