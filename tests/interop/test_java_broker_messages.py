"""Tests of requests, traces, priorities and namespaces with the Java broker 5.5.0."""

from __future__ import annotations

import asyncio
from typing import Any

from kourou import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
)
from kourou.errors import NoRouteError
from kourou.protocol.trace_text import (
    ConsumedTrace,
    ConsumingTrace,
    SentTrace,
    TraceRecord,
    decode_traces,
)
from tests.interop.peer import JavaServer

TIMEOUT_S = 60
FIRST = ConsumeFromWhere.FIRST_OFFSET
TRACES = "RMQ_SYS_TRACE_TOPIC"


async def create_topic(namesrv: str, topic: str, **options: Any) -> None:
    """Create a topic once the broker has registered, shortly after its start."""
    async with AdminClient(namesrv) as admin:
        while not (await admin.cluster_info()).brokers:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.2)
        await admin.create_topic(topic, **options)


def test_a_request_gets_its_reply_through_the_java_broker(java_server: JavaServer) -> None:
    async def main() -> None:
        namesrv = java_server.namesrv_addr
        await create_topic(namesrv, "PyAsked", queues=2)
        async with Producer("py-answerers", namesrv) as answerer:

            async def answer(question: MessageExt) -> None:
                await answerer.reply(question, question.body.upper())

            config = PushConsumerConfig(consume_from_where=FIRST)
            consumer = PushConsumer("py-answerers", namesrv, config=config)
            consumer.subscribe("PyAsked")
            consumer.listen(answer)
            async with consumer, Producer("py-askers", namesrv) as asker:
                bodies = [b"question %d" % number for number in range(20)]
                bodies.append(b"large " * 2_000)
                replies = await asyncio.gather(
                    *(asker.request(Message("PyAsked", one), timeout_ms=30_000) for one in bodies)
                )
                assert [reply.body for reply in replies] == [one.upper() for one in bodies]

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_traces_of_sends_and_of_consumption_reach_the_java_broker(java_server: JavaServer) -> None:
    async def records(namesrv: str) -> list[TraceRecord]:
        async with PullConsumer("py-trace-readers", namesrv) as reader:
            try:
                queues = await reader.fetch_subscribe_message_queues(TRACES)
            except NoRouteError:
                return []
            results = [await reader.pull(queue, 0) for queue in queues]
            return [
                record
                for result in results
                for message in result.messages
                for record in decode_traces(message.body)
            ]

    async def main() -> None:
        namesrv = java_server.namesrv_addr
        config = ProducerConfig(enable_trace=True)
        async with Producer("py-traced", namesrv, config=config) as producer:
            receipt = await producer.send(Message("PyTraced", b"1", keys=["k"]), timeout_ms=15_000)
        consumer = PushConsumer(
            "py-traced",
            namesrv,
            config=PushConsumerConfig(consume_from_where=FIRST, enable_trace=True),
        )
        consumer.subscribe("PyTraced")
        async with consumer:
            async for message in consumer:
                assert message.msg_id == receipt.msg_id
                break
        found: list[TraceRecord] = []
        while {type(one) for one in found} < {SentTrace, ConsumingTrace, ConsumedTrace}:
            await asyncio.sleep(0.2)
            found = await records(namesrv)
        assert {one.msg_id for one in found} == {receipt.msg_id}

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_java_broker_chooses_the_queue_by_priority(java_server: JavaServer) -> None:
    async def main() -> None:
        namesrv = java_server.namesrv_addr
        await create_topic(namesrv, "PyUrgent", queues=4, attributes={"message.type": "PRIORITY"})
        async with Producer("py-urgent", namesrv) as producer:
            for priority, queue_id in ((0, 0), (2, 2), (9, 3), (1, 1)):
                message = Message("PyUrgent", b"x", priority=priority)
                receipt = await producer.send(message, timeout_ms=15_000)
                assert receipt.queue.queue_id == queue_id

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_namespace_works_with_the_java_broker(java_server: JavaServer) -> None:
    async def main() -> None:
        namesrv = java_server.namesrv_addr
        await create_topic(namesrv, "pyns%PyNamed", queues=2)
        config = ProducerConfig(namespace="pyns")
        async with Producer("py-named", namesrv, config=config) as producer:
            await producer.send(Message("PyNamed", b"1"), timeout_ms=15_000)
        received: list[tuple[str, int]] = []
        is_back = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            received.append((message.topic, message.reconsume_times))
            if len(received) == 1:
                raise ValueError("once more")
            is_back.set()

        consumer = PushConsumer(
            "py-named",
            namesrv,
            config=PushConsumerConfig(consume_from_where=FIRST, namespace="pyns"),
        )
        consumer.subscribe("PyNamed")
        consumer.listen(listen)
        async with consumer:
            await is_back.wait()
        assert received == [("PyNamed", 0), ("PyNamed", 1)]
        v2 = ProducerConfig(namespace_v2="pyns")
        async with Producer("py-named", namesrv, config=v2) as producer:
            receipt = await producer.send(Message("PyPlain", b"1"), timeout_ms=15_000)
            assert receipt.queue.topic == "PyPlain"

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
