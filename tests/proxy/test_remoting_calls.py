"""Each kind of request of remoting clients reaches the right broker through the proxy."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou import (
    Message,
    MessageExt,
    PoppedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.sending import SendMessageRequestHeader
from kourou.proxy.cluster import Cluster as Brokers
from kourou.remoting.network import format_address
from kourou.testing.cluster import Cluster
from tests.proxy.proxy_rig import TOPIC
from tests.proxy.test_cluster_mode import NAMES, create
from tests.proxy.test_remoting_port import (
    FIRST,
    SECOND,
    push_consumer,
    through,
    until,
    with_proxies,
)


def test_ordered_consumers_at_two_proxies_never_share_a_queue() -> None:
    async def test(cluster: Cluster) -> None:
        received: dict[tuple[str, int], list[bytes]] = {}
        open_calls: Counter[tuple[str, int]] = Counter()

        async def take(message: MessageExt) -> None:
            queue = (message.broker_name, message.queue_id)
            open_calls[queue] += 1
            assert open_calls[queue] == 1
            await asyncio.sleep(0.5)
            open_calls[queue] -= 1
            received.setdefault(queue, []).append(message.body)

        def count_of(consumer: PushConsumer) -> int:
            return sum(queue.topic == TOPIC for queue in consumer.queues)

        consumers = [push_consumer(proxy, cluster, "ordered") for proxy in (FIRST, SECOND)]
        for consumer in consumers:
            consumer.subscribe(TOPIC)
            consumer.listen_orderly(take)
        async with Producer("senders", **through(FIRST, cluster)) as producer, consumers[0]:
            queues = await producer.fetch_publish_message_queues(TOPIC)
            await until(lambda: count_of(consumers[0]) == len(queues))
            async with consumers[1]:  # takes half of the queues while messages come
                bodies = [b"%d" % number for number in range(40)]
                for body in bodies:
                    for queue in queues:
                        await producer.send(Message(TOPIC, body), queue=queue)
                await until(lambda: [count_of(consumer) for consumer in consumers] == [2, 2])
                await until(lambda: sum(map(len, received.values())) == len(queues) * len(bodies))
        assert received == {(queue.broker_name, queue.queue_id): bodies for queue in queues}

    with_proxies(test)


def test_batch_is_stored_whole_at_its_broker() -> None:
    async def test(cluster: Cluster) -> None:
        async with Producer("senders", **through(FIRST, cluster)) as producer:
            for queue in await producer.fetch_publish_message_queues(TOPIC):
                messages = [Message(TOPIC, b"%d" % number) for number in range(3)]
                receipts = await producer.send_batch(messages, queue=queue)
                assert [(one.queue, one.queue_offset) for one in receipts] == [
                    (queue, number) for number in range(3)
                ]

    with_proxies(test)


def test_recalled_message_is_not_delivered() -> None:
    async def test(cluster: Cluster) -> None:
        await create(cluster, TopicConfig("Later", 1, 1, attributes={"message.type": "DELAY"}))
        received: Counter[bytes] = Counter()
        consumer = push_consumer(SECOND, cluster, "pushers")
        consumer.subscribe("Later")

        async def take(message: MessageExt) -> None:
            received[message.body] += 1

        consumer.listen(take)
        async with Producer("senders", **through(FIRST, cluster)) as producer, consumer:
            for number in range(4):  # at both brokers
                body = b"recalled-%d" % number
                sent = await producer.send(Message("Later", body, delay_ms=20_000))
                assert sent.recall_handle is not None
                await producer.recall("Later", sent.recall_handle)
                await producer.send(Message("Later", b"kept-%d" % number, delay_ms=20_000))
            kept = Counter(b"kept-%d" % number for number in range(4))
            await until(lambda: received == kept)
            await asyncio.sleep(30)
            assert received == kept

    with_proxies(test)


def test_popped_messages_are_hidden_longer_and_acknowledged_together() -> None:
    async def test(cluster: Cluster) -> None:
        async with (
            SimpleConsumer("poppers", **through(SECOND, cluster)) as consumer,
            Producer("senders", **through(FIRST, cluster)) as producer,
        ):
            consumer.subscribe(TOPIC)
            assert await consumer.receive(wait_ms=5_000) == []
            bodies = {b"%d" % number for number in range(16)}
            for body in sorted(bodies):
                await producer.send(Message(TOPIC, body))
            found: dict[bytes, PoppedMessage] = {}
            while len(found) < len(bodies):
                for message in await consumer.receive(invisible_ms=10_000):
                    found[message.body] = message
            hidden = found.pop(b"7")
            assert {message.broker_name for message in found.values()} == set(NAMES)
            await consumer.change_invisible(hidden, 60_000)
            await consumer.ack_all(found.values())
            await asyncio.sleep(45)
            assert await consumer.receive(wait_ms=5_000) == []
            [again] = await consumer.receive(wait_ms=30_000, invisible_ms=10_000)
            assert again.body == b"7"

    with_proxies(test)


def test_pull_consumer_reads_from_any_position() -> None:
    async def test(cluster: Cluster) -> None:
        async with (
            PullConsumer("pullers", **through(SECOND, cluster)) as consumer,
            Producer("senders", **through(FIRST, cluster)) as producer,
        ):
            queues = await producer.fetch_publish_message_queues(TOPIC)
            for queue in queues:
                await producer.send(Message(TOPIC, b"early"), queue=queue)
            await asyncio.sleep(10)
            between_ms = cluster.runtime.clock.now_ms()
            await asyncio.sleep(10)
            for queue in queues:
                await producer.send(Message(TOPIC, b"late"), queue=queue)
                assert await consumer.min_offset(queue) == 0
                assert await consumer.max_offset(queue) == 2
                assert await consumer.offset_for_time(queue, between_ms) == 1
            await consumer.assign(queues)
            for queue in queues:
                await consumer.seek_to_time(queue, between_ms)
            found: Counter[tuple[str, int, bytes]] = Counter()
            while len(found) < len(queues):
                for message in await consumer.poll():
                    found[message.broker_name, message.queue_id, message.body] += 1
            assert found == Counter((one.broker_name, one.queue_id, b"late") for one in queues)
            await consumer.commit()
            for queue in queues:
                assert await consumer.committed(queue) == 2

    with_proxies(test)


def test_send_with_long_names_is_stored_at_its_broker() -> None:
    async def test(cluster: Cluster) -> None:
        brokers = Brokers(cluster.runtime, (cluster.namesrv_addr,))
        try:
            for name in NAMES:
                header = SendMessageRequestHeader(
                    "senders", TOPIC, "TBW102", 4, 1, 0, cluster.runtime.clock.now_ms(), 0
                )
                asked = request(RequestCode.SEND_MESSAGE, header, b"long")
                asked.ext_fields["bname"] = name
                raise_for_response(await brokers.pool.request(format_address(FIRST), asked, 3.0))
        finally:
            await brokers.close()
        async with PullConsumer("pullers", **through(SECOND, cluster)) as consumer:
            queues = await consumer.fetch_subscribe_message_queues(TOPIC)
            counts = {
                (one.broker_name, one.queue_id): await consumer.max_offset(one) for one in queues
            }
        assert counts == {(name, number): number for name in NAMES for number in (0, 1)}

    with_proxies(test)


def test_consumer_by_properties_is_checked_and_gets_only_what_matches() -> None:
    async def test(cluster: Cluster) -> None:
        async with (
            PullConsumer("pullers", **through(SECOND, cluster)) as consumer,
            Producer("senders", **through(FIRST, cluster)) as producer,
        ):
            queues = await producer.fetch_publish_message_queues(TOPIC)
            for queue in queues:
                for size in ("1", "9"):
                    message = Message(TOPIC, size.encode(), properties={"size": size})
                    await producer.send(message, queue=queue)
            await consumer.assign(queues, sql="size > 5")
            for queue in queues:
                await consumer.seek_to_beginning(queue)
            found: list[bytes] = []
            while len(found) < len(queues):
                found += [message.body for message in await consumer.poll()]
        assert found == [b"9"] * len(queues)

    with_proxies(test, enable_property_filter=True)
