"""Errors of a producer for invalid or impossible sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.errors import (
    ConfigError,
    ConnectFailedError,
    InvalidGroupError,
    InvalidMessageError,
    InvalidTopicError,
    KourouError,
    MessageIllegalError,
    NoRouteError,
    RequestTimeoutError,
    UsageError,
)
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.topic import PERM_READ
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

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


@asynccontextmanager
async def registered(cluster: Cluster, topic: str, queues: int = 4) -> AsyncIterator[None]:
    """Create the topic first, so that no test depends on when a route appears."""
    async with cluster.admin() as admin:
        await admin.create_topic(topic, queues=queues)
    yield


def test_broker_without_answer_causes_a_timeout() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            await producer.send(Message("T", b"x"))
            cluster.network.stall(cluster.broker_address())
            started_at = asyncio.get_running_loop().time()
            with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:10911"):
                await producer.send(Message("T", b"y"), timeout_ms=700)
            assert asyncio.get_running_loop().time() - started_at == pytest.approx(0.7, abs=0.01)
            cluster.network.heal(cluster.broker_address())

    with_producer(body)


def test_unreachable_name_server_is_named_with_remedy_within_timeout() -> None:
    async def main() -> None:
        runtime = sim_runtime()
        async with Producer("g", "127.0.0.1:19876;127.0.0.1:19877", runtime=runtime) as producer:
            with pytest.raises(ConnectFailedError) as caught:
                await producer.send(Message("T", b"x"))
            assert asyncio.get_running_loop().time() <= 3.0
        for part in ("127.0.0.1:19876", "127.0.0.1:19877", "kourou serve"):
            assert part in str(caught.value)

    run_virtual(main())


def test_unknown_topic_is_named_with_remedy() -> None:
    async def body(_: Cluster, producer: Producer) -> None:
        with pytest.raises(NoRouteError, match=r"topic absent: create it .kourou topic create"):
            await producer.send(Message("absent", b"x"), timeout_ms=500)

    with_producer(body, config=ProducerConfig(auto_create_topic=False))


def test_topic_without_write_permission_is_refused() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with cluster.admin() as admin:
            await admin.create_topic("archive", perm=PERM_READ)
        with pytest.raises(NoRouteError, match="archive has no writable queue"):
            await producer.send(Message("archive", b"x"), timeout_ms=500)

    with_producer(body)


def test_permanent_refusal_is_raised_at_once() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        async with registered(cluster, "T"):
            started_at = asyncio.get_running_loop().time()
            with pytest.raises(MessageIllegalError):
                await producer.send(Message("T", bytes(range(256)) * 80))
            assert asyncio.get_running_loop().time() - started_at < 0.1

    # More than the broker's 16 KiB, below the producer's own limit.
    with_producer(body, config=ProducerConfig(compress_body_over_bytes=None))


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Message("T", b""), InvalidMessageError, "body of a message to T is empty"),
        (Message("a b", b"x"), InvalidTopicError, "a b"),
        (Message("", b"x"), InvalidTopicError, "blank"),
        (Message("T" * 128, b"x"), InvalidTopicError, "128 characters, the limit is 127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), InvalidTopicError, "reserved for brokers"),
        (Message("T", bytes(101)), InvalidMessageError, "101 bytes exceed .* 100: split"),
        (
            Message("T", b"x", properties={"k": "v" * 30_000}),
            InvalidMessageError,
            "take 30.* bytes, at most 30000",
        ),
    ],
)
def test_invalid_message_is_refused_without_a_request(
    message: Message, error: type[KourouError], text: str
) -> None:
    async def main() -> None:
        config = ProducerConfig(max_message_size_bytes=100)
        async with Producer("g", "nowhere:1", config=config, runtime=sim_runtime()) as producer:
            with pytest.raises(error, match=text):
                await producer.send(message)
            with pytest.raises(error, match=text):
                await producer.submit(message)
            with pytest.raises(error, match=text):
                await producer.send_oneway(message)
            with pytest.raises(error, match=text):
                await producer.send_batch([message])
            assert asyncio.get_running_loop().time() == 0

    run_virtual(main())


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "no message"),
        ([Message("A", b"x"), Message("B", b"x")], "same topic, not A and B"),
        ([Message("A", b"x", delay_level=3)], "delay_level 3"),
        ([Message("A", b"x", priority=0)], "priority 0 of a message in a batch"),
        ([Message("A", b"x"), Message("A", b"x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("A", b"x" * 60), Message("A", b"x" * 60)], "exceed max_message_size_bytes, 100"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
    ],
)
def test_invalid_batch_is_refused_without_a_request(messages: list[Message], text: str) -> None:
    async def main() -> None:
        config = ProducerConfig(max_message_size_bytes=100)
        async with Producer("g", "nowhere:1", config=config, runtime=sim_runtime()) as producer:
            with pytest.raises(UsageError, match=text):
                await producer.send_batch(messages)
            assert asyncio.get_running_loop().time() == 0

    run_virtual(main())


def test_queue_of_another_topic_is_refused() -> None:
    async def main() -> None:
        async with Producer("g", "nowhere:1", runtime=sim_runtime()) as producer:
            with pytest.raises(UsageError, match="to T cannot be sent to a queue of U"):
                await producer.send(Message("T", b"x"), queue=MessageQueue("U", "b", 0))

    run_virtual(main())


def test_invalid_names_are_refused_at_once() -> None:
    with pytest.raises(InvalidGroupError, match="DEFAULT_PRODUCER"):
        Producer("DEFAULT_PRODUCER", "localhost:9876")
    with pytest.raises(InvalidGroupError, match="blank"):
        Producer("", "localhost:9876")
    with pytest.raises(ConfigError, match="namesrv_addr is empty"):
        Producer("g", " ; ")
    with pytest.raises(ConfigError, match="port 'x'"):
        Producer("g", "localhost:x")
