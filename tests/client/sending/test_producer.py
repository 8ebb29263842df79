"""Guarantees of a producer, with real brokers and name servers on a simulated network."""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.sending.producer import Durability, Producer, SendStatus
from kourou.errors import (
    ClosedError,
    ConnectFailedError,
)
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from kourou.testing.inspection import instance_of
from kourou.testing.loop import run_virtual

P = ParamSpec("P")
T = TypeVar("T")
Body = Callable[[Cluster, Producer], Coroutine[Any, Any, None]]


def with_producer(
    body: Body,
    *,
    config: ProducerConfig | None = None,
    brokers: int = 1,
    namesrvs: int = 1,
) -> None:
    async def main() -> None:
        async with (
            Cluster(seed=3, brokers=brokers, namesrvs=namesrvs) as cluster,
            cluster.producer(config=config) as producer,
        ):
            await body(cluster, producer)

    run_virtual(main())


async def stored(cluster: Cluster, topic: str) -> list[MessageExt]:
    """Return all messages of the topic, queue by queue."""
    messages = []
    config = PullConsumerConfig(pull_timeout_ms=3000)
    async with cluster.pull_consumer(config=config) as reader:
        for queue in await reader.fetch_subscribe_message_queues(topic):
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                result = await reader.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages


@asynccontextmanager
async def registered(cluster: Cluster, topic: str, queues: int = 4) -> AsyncIterator[None]:
    """Create the topic first, so that no test depends on when a route appears."""
    async with cluster.admin() as admin:
        await admin.create_topic(topic, queues=queues)
    yield


def test_message_arrives_unchanged_and_receipt_has_position_and_durability() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            message = Message(
                "T", b"paid", tags="eu", keys=["o-17", "c-3"], properties={"who": "ä"}, flag=7
            )
            receipt = await producer.send(message)

            [found] = await stored(cluster, "T")
            assert (found.body, found.tags, found.keys, found.flag) == (
                b"paid",
                "eu",
                ["o-17", "c-3"],
                7,
            )
            assert found.properties["who"] == "ä"
            assert receipt.queue == MessageQueue("T", "broker-0", found.queue_id)
            assert receipt.queue_offset == found.queue_offset
            assert receipt.msg_id == found.msg_id
            assert receipt.offset_msg_id == found.offset_msg_id
            assert (receipt.durability, receipt.status) == (Durability.DISK, SendStatus.SEND_OK)

    with_producer(body)


def test_messages_are_sent_to_all_queues_in_turn() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T", queues=2):
            queues = [(await producer.send(Message("T", b"x"))).queue for _ in range(8)]
            expected = await producer.fetch_publish_message_queues("T")
            assert len(expected) == 4
            assert sorted(queues) == sorted(expected * 2)
            assert queues[:4] == queues[4:]

    with_producer(body, brokers=2)


def test_each_topic_has_its_own_round_robin() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "A"), registered(cluster, "B"):
            used = [
                (await producer.send(Message(topic, b"x"))).queue
                for topic in ("A", "B", "A", "B", "A", "B", "A", "B")
            ]
            assert len(set(used)) == 8

    with_producer(body)


def test_messages_to_one_queue_keep_their_order() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            queue = MessageQueue("T", "broker-0", 2)
            bodies = [b"%d" % number for number in range(10)]
            for number, payload in enumerate(bodies):
                receipt = await producer.send(Message("T", payload), queue=queue)
                assert (receipt.queue, receipt.queue_offset) == (queue, number)
            assert [message.body for message in await stored(cluster, "T")] == bodies

    with_producer(body)


def test_broker_down_for_a_second_causes_no_error_and_no_loss() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            sent: list[bytes] = []

            async def keep_sending(name: int) -> None:
                for number in range(40):
                    payload = b"%d-%d" % (name, number)
                    await producer.send(Message("T", payload))
                    sent.append(payload)
                    await asyncio.sleep(0.05)

            sending = [asyncio.create_task(keep_sending(name)) for name in range(5)]
            await asyncio.sleep(0.5)
            await cluster.crash_broker()
            await asyncio.sleep(1)
            await cluster.restart_broker()
            await asyncio.gather(*sending)

            assert len(sent) == 200
            found = [message.body for message in await stored(cluster, "T")]
            assert set(found) == set(sent)

    with_producer(body)


def test_copies_after_a_lost_answer_have_the_same_id() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            await producer.send(Message("T", b"first"))  # connected
            sending = asyncio.create_task(producer.send(Message("T", b"twice")))
            await asyncio.sleep(0.0015)  # the request has arrived, its answer has not
            cluster.network.cut(cluster.broker_address())
            cluster.network.heal(cluster.broker_address())
            receipt = await sending

            ids = [found.msg_id for found in await stored(cluster, "T") if found.body == b"twice"]
            assert ids == [receipt.msg_id, receipt.msg_id]

    with_producer(body)


def test_messages_are_sent_to_the_other_broker_while_one_is_down() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T", queues=2):
            await producer.fetch_publish_message_queues("T")
            await cluster.crash_broker(0)
            names = {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}
            assert names == {"broker-1"}

    with_producer(body, brokers=2)


def test_next_name_server_is_used_after_a_failure() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "A"), registered(cluster, "B"):
            for port, topic in ((9876, "A"), (9877, "B")):
                await asyncio.sleep(40)  # until the broker is registered at both
                cluster.network.cut(("127.0.0.1", port))
                assert await producer.fetch_publish_message_queues(topic)
                cluster.network.heal(("127.0.0.1", port))

    with_producer(body, namesrvs=2)


def test_concurrent_failed_requests_all_find_the_working_name_server() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "A"), registered(cluster, "B"):
            for port in (9876, 9877):
                await asyncio.sleep(40)  # until the broker is registered at both
                cluster.network.cut(("127.0.0.1", port))
                fetch = producer.fetch_publish_message_queues
                assert all(await asyncio.gather(fetch("A"), fetch("B")))
                cluster.network.heal(("127.0.0.1", port))

    with_producer(body, namesrvs=2)


def test_name_server_without_answer_leaves_time_for_the_other() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "A"), registered(cluster, "B"):
            await asyncio.sleep(1)  # both brokers are registered at both
            for port, topic in ((9876, "A"), (9877, "B")):
                cluster.network.stall(("127.0.0.1", port))
                assert (await producer.send(Message(topic, b"x"))).queue.topic == topic
                cluster.network.heal(("127.0.0.1", port))

    with_producer(body, namesrvs=2)


def test_first_message_creates_its_topic_with_the_configured_queues() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        for _ in range(6):
            receipt = await producer.send(Message("new", b"x"))
            assert receipt.queue.queue_id < 3
        await asyncio.sleep(31)  # until the route is refreshed
        assert len(await producer.fetch_publish_message_queues("new")) == 3

    with_producer(body, config=ProducerConfig(default_topic_queue_nums=3))


def test_batch_is_stored_consecutively_with_a_receipt_for_each_message() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            messages = [Message("T", b"%d" % number, keys=[f"k{number}"]) for number in range(5)]
            receipts = await producer.send_batch(messages)

            assert len({receipt.queue for receipt in receipts}) == 1
            assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2, 3, 4]
            found = await stored(cluster, "T")
            assert [one.body for one in found] == [one.body for one in messages]
            assert [one.keys for one in found] == [[f"k{number}"] for number in range(5)]
            assert [one.msg_id for one in found] == [receipt.msg_id for receipt in receipts]
            assert [one.offset_msg_id for one in found] == [
                receipt.offset_msg_id for receipt in receipts
            ]

    with_producer(body)


def test_oneway_message_arrives() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            await producer.send_oneway(Message("T", b"x"))
            await asyncio.sleep(0.1)
            assert [found.body for found in await stored(cluster, "T")] == [b"x"]

    with_producer(body)


def test_large_bodies_are_sent_compressed_and_arrive_unchanged() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T", queues=1):
            random = cluster.runtime.random
            plain, at_limit = b"a" * 4095, b"a" * 4096
            dense = random.randbytes(5000)
            for payload in (plain, at_limit, dense):
                await producer.send(Message("T", payload))

            found = await stored(cluster, "T")
            assert [one.body for one in found] == [plain, at_limit, dense]
            sizes = [one.store_size for one in found]
            assert sizes[0] > 4095
            assert sizes[1] < 300 + len(zlib.compress(at_limit, 5))
            assert sizes[2] > 5000, "an incompressible body is sent uncompressed"

    with_producer(body)


def test_background_sends_are_limited_and_flush_waits_for_all() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            futures = []
            for number in range(40):
                futures.append(await producer.submit(Message("T", b"%d" % number)))
                assert sum(not future.done() for future in futures) <= 8
            await producer.flush()
            assert all(future.done() for future in futures)
            ids = {future.result().msg_id for future in futures}
            assert ids == {found.msg_id for found in await stored(cluster, "T")}
            assert len(ids) == 40

    with_producer(body, config=ProducerConfig(in_flight_messages_max=8))


def test_close_waits_for_background_sends_and_then_refuses_calls() -> None:
    async def main() -> None:
        async with Cluster(seed=1) as cluster, registered(cluster, "T"):
            producer = cluster.producer()
            with pytest.raises(ClosedError, match="not started"):
                await producer.send(Message("T", b"x"))
            await producer.start()
            with pytest.raises(ClosedError, match="started before"):
                await producer.start()
            futures = [await producer.submit(Message("T", b"x")) for _ in range(10)]
            futures.append(asyncio.create_task(producer.send(Message("T", b"x"))))
            await asyncio.sleep(0)
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            with pytest.raises(ClosedError, match="closed"):
                await producer.submit(Message("T", b"late"))
            await closing
            assert all(future.result().durability is Durability.DISK for future in futures)
            await producer.close()
            with pytest.raises(ClosedError, match="producer is closed"):
                await producer.send(Message("T", b"x"))

    run_virtual(main())


def test_close_waits_for_a_body_being_compressed() -> None:
    async def main() -> None:
        async with Cluster(seed=1) as cluster, registered(cluster, "T"):
            compressing = asyncio.Event()

            async def slowly(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
                compressing.set()
                await asyncio.sleep(1)
                return function(*args, **kwargs)

            runtime = dataclasses.replace(cluster.runtime, offload=slowly)
            producer = Producer("p", cluster.namesrv_addr, runtime=runtime)
            await producer.start()
            sending = asyncio.create_task(producer.send(Message("T", bytes(300_000))))
            await compressing.wait()
            await producer.close()
            assert (await sending).status is SendStatus.SEND_OK

    run_virtual(main())


def test_failed_background_send_is_reported_only_by_its_future() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            await producer.send(Message("T", b"x"))
            cluster.network.cut(cluster.broker_address())
            future = await producer.submit(Message("T", b"y"), timeout_ms=300)
            await producer.flush()
            with pytest.raises(ConnectFailedError, match="10911"):
                future.result()
            cluster.network.heal(cluster.broker_address())

    with_producer(body)


def test_cancelled_send_does_not_affect_the_producer() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            for delay_s in (0, 0.0005, 0.001, 0.002):
                task = asyncio.create_task(producer.send(Message("T", b"maybe")))
                await asyncio.sleep(delay_s)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            receipt = await producer.send(Message("T", b"surely"))
            await asyncio.sleep(0.1)
            found = await stored(cluster, "T")
            assert [one.body for one in found if one.msg_id == receipt.msg_id] == [b"surely"]
            assert {one.body for one in found} <= {b"maybe", b"surely"}

    with_producer(body)


def test_producer_is_registered_until_it_closes() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            await producer.send(Message("T", b"x"))
            await asyncio.sleep(0.5)
            assert instance_of(producer).registered_addresses == ["127.0.0.1:10911"]

    with_producer(body)
