"""Tests of further features of Kourou's clients with the Java broker.

Transactions, order, timers, requests, filters, traces, namespaces, assignment by the broker: each
with the Java broker 5.5.0 and, to verify the test, with Kourou.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest

from kourou import (
    AdminClient,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    TransactionProducer,
    TransactionState,
    split_batch,
)
from kourou.errors import RemoteError, ReplyTimeoutError
from tests.interop.ledger import make_topics, read_all
from tests.interop.members import (
    PATIENCE_S,
    SETTLE_S,
    Inbox,
    config_of,
    consumer_of,
    name_of,
    now_ms,
)

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def test_transactions_end_by_request_or_by_check(namesrv_addr: str) -> None:
    topic = name_of("Transactions")
    checks: Counter[str] = Counter()

    async def check(message: MessageExt) -> TransactionState:
        body = message.body.decode()
        checks[body] += 1
        assert message.topic == topic
        return TransactionState[body.split("-")[1]]

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        async with (
            TransactionProducer(f"{topic}-producer", namesrv_addr, check=check) as producer,
            consumer_of(namesrv_addr, topic, inbox.take),
        ):
            for state_name, checked in (
                ("COMMIT", "ROLLBACK"),
                ("ROLLBACK", "COMMIT"),
                ("UNKNOWN", "COMMIT"),
                ("UNKNOWN", "ROLLBACK"),
            ):
                message = Message(topic, f"{state_name}-{checked}".encode(), keys=[state_name])
                receipt = await producer.send_in_transaction(
                    message,
                    lambda _, state_name=state_name: TransactionState[state_name],  # type: ignore[misc]
                    timeout_ms=15_000,
                )
                assert receipt.state is TransactionState[state_name]
            assert set(await inbox.exactly(2)) == {"COMMIT-ROLLBACK", "UNKNOWN-COMMIT"}
            async with asyncio.timeout(PATIENCE_S):
                while not checks["UNKNOWN-ROLLBACK"]:  # noqa: ASYNC110 - set by the broker's ask
                    await asyncio.sleep(0.1)
        assert "COMMIT-ROLLBACK" not in checks
        assert "ROLLBACK-COMMIT" not in checks

    asyncio.run(run())


def test_ordered_queues_are_handed_over_in_order_without_duplicates(
    namesrv_addr: str,
) -> None:
    topic = name_of("Ordered")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=4)
        by_key: dict[str, list[int]] = defaultdict(list)
        inside: Counter[int] = Counter()

        async def listen(message: MessageExt) -> None:
            inside[message.queue_id] += 1
            assert inside[message.queue_id] == 1, "a queue has two listeners"
            await asyncio.sleep(0.001)
            inside[message.queue_id] -= 1
            key, _, number = message.body.decode().partition(":")
            by_key[key].append(int(number))

        def member() -> PushConsumer:
            consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config_of())
            consumer.subscribe(topic)
            consumer.listen_orderly(listen)
            return consumer

        async def send(numbers: range) -> None:
            for number in numbers:
                for key in "abcdef":
                    message = Message(topic, f"{key}:{number}".encode())
                    await producer.send(message, sharding_key=key, timeout_ms=15_000)

        async with Producer("ordering", namesrv_addr) as producer, member():
            await send(range(10))
            async with member():
                await send(range(10, 30))
                await asyncio.sleep(3)  # queues are reassigned meanwhile
                await send(range(30, 40))
            await send(range(40, 50))
            async with asyncio.timeout(PATIENCE_S):
                while sum(map(len, by_key.values())) < 300:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
        assert by_key == {key: list(range(50)) for key in "abcdef"}

    asyncio.run(run())


def test_scheduled_messages_are_delivered_at_their_time_or_recalled(namesrv_addr: str) -> None:
    topic = name_of("Timers")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox, due_ms = Inbox(), {}
        async with (
            Producer("timing", namesrv_addr) as producer,
            consumer_of(namesrv_addr, topic, inbox.take),
        ):
            for number in range(4):
                body, delay_ms = f"timer-{number}", 2_500 + 600 * number
                due_ms[body] = now_ms() + delay_ms
                message = (
                    Message(topic, body.encode(), delay_ms=delay_ms)
                    if number % 2
                    else Message(topic, body.encode(), deliver_at_ms=int(due_ms[body]))
                )
                await producer.send(message, timeout_ms=15_000)
            later = Message(topic, b"no", deliver_at_ms=int(now_ms()) + 6_000)
            receipt = await producer.send(later, timeout_ms=15_000)
            assert receipt.recall_handle
            assert await producer.recall(topic, receipt.recall_handle) == receipt.msg_id
            with pytest.raises(RemoteError):
                await producer.recall("Other", receipt.recall_handle)
            await inbox.exactly(4)
            await asyncio.sleep(5)
        assert {message.body.decode() for message in inbox.messages} == set(due_ms)
        for came, at_ms in zip(inbox.messages, inbox.times_ms, strict=True):
            early_ms = due_ms[came.body.decode()] - at_ms
            assert early_ms <= 1_100, "Java keeps whole seconds"

    asyncio.run(run())


def test_request_receives_the_reply_of_its_consumer(namesrv_addr: str) -> None:
    topic = name_of("Questions")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        async with (
            Producer(f"{topic}-answers", namesrv_addr) as answering,
            Producer(f"{topic}-questions", namesrv_addr) as asking,
        ):

            async def answer(message: MessageExt) -> None:
                if message.body != b"ignored":
                    await answering.reply(message, b"re:" + message.body)

            async with consumer_of(namesrv_addr, topic, answer):
                for body in (b"short", b"x" * 10_000):
                    reply = await asking.request(Message(topic, body), timeout_ms=30_000)
                    assert reply.body == b"re:" + body
                with pytest.raises(ReplyTimeoutError):
                    await asking.request(Message(topic, b"ignored"), timeout_ms=1_000)

    asyncio.run(run())


def test_sql_expression_filters_messages(namesrv_addr: str) -> None:
    topic = name_of("Filtered")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config_of())
        consumer.subscribe(topic, sql="(price BETWEEN 3 AND 5 OR colour = 'red') AND TAGS = 'a'")
        consumer.listen(inbox.take)
        async with Producer("filtering", namesrv_addr) as producer, consumer:
            for number in range(20):
                properties = {"price": str(number)} | ({"colour": "red"} if number > 17 else {})
                tags = "b" if number == 4 else "a"
                message = Message(topic, str(number).encode(), tags=tags, properties=properties)
                await producer.send(message, timeout_ms=15_000)
            assert sorted(map(int, await inbox.exactly(4))) == [3, 5, 18, 19]

    asyncio.run(run())


def test_sends_and_deliveries_are_traced(namesrv_addr: str) -> None:
    topic = name_of("Traced")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        config = ProducerConfig(enable_trace=True)
        async with (
            Producer("tracing", namesrv_addr, config=config) as producer,
            consumer_of(namesrv_addr, topic, inbox.take, enable_trace=True),
        ):
            receipt = await producer.send(Message(topic, b"traced", keys=["k"]), timeout_ms=15_000)
            await inbox.exactly(1)
        kinds = set()
        for message in await read_all(namesrv_addr, TRACE_TOPIC):
            for record in message.body.decode().split("\x02"):
                if receipt.msg_id in record:
                    kinds.add(record.partition("\x01")[0])
                    assert receipt.msg_id in message.keys
        assert kinds == {"Pub", "SubBefore", "SubAfter"}

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["namespace", "namespace_v2"])
def test_namespaces_are_transparent(namesrv_addr: str, kind: str) -> None:
    topic, space = name_of("Spaced"), name_of("space")
    stored = f"{space}%{topic}" if kind == "namespace" else topic

    async def run() -> None:
        await make_topics(namesrv_addr, stored)
        inbox = Inbox()
        config = ProducerConfig(**{kind: space})  # type: ignore[arg-type]
        async with (
            Producer("spacing", namesrv_addr, config=config) as producer,
            consumer_of(namesrv_addr, topic, inbox.take, **{kind: space}),
        ):
            await producer.send(Message(topic, b"inside"), timeout_ms=15_000)
            assert await inbox.exactly(1) == ["inside"]
        assert inbox.messages[0].topic == topic
        assert len(await read_all(namesrv_addr, stored)) == 1

    asyncio.run(run())


def test_members_with_broker_assignment_receive_each_message_once(
    namesrv_addr: str,
) -> None:
    topic = name_of("Shared")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=6)
        inboxes = [Inbox() for _ in range(3)]
        members = [
            consumer_of(namesrv_addr, topic, inbox.take, client_rebalance=False)
            for inbox in inboxes
        ]
        async with (
            Producer("sharing", namesrv_addr) as producer,
            members[0],
            members[1],
            members[2],
        ):
            await asyncio.sleep(5)  # until the queues are assigned
            queues = await producer.fetch_publish_message_queues(topic)
            for number in range(24):
                message = Message(topic, str(number).encode())
                queue = queues[number % len(queues)]
                await producer.send(message, queue=queue, timeout_ms=15_000)
            async with asyncio.timeout(PATIENCE_S):
                while sum(len(inbox.messages) for inbox in inboxes) < 24:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
        assert sorted(int(message.body) for inbox in inboxes for message in inbox.messages) == list(
            range(24)
        )
        assert [len(inbox.messages) for inbox in inboxes] == [8, 8, 8]

    asyncio.run(run())


def test_many_messages_are_sent_in_batches_and_a_too_large_one_is_refused(
    namesrv_addr: str,
) -> None:
    topic = name_of("Parts")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        messages = [Message(topic, bytes(400 + n), keys=[f"key-{n}"]) for n in range(1_500)]
        parts = split_batch(messages, 256 * 1024)
        assert len(parts) > 5
        config = ProducerConfig(max_message_size_bytes=12 << 20)
        async with Producer("splitting", namesrv_addr, config=config) as producer:
            offsets = []
            for part in parts:
                receipts = await producer.send_batch(part, timeout_ms=15_000)
                offsets += [receipt.queue_offset for receipt in receipts]
            assert offsets == list(range(1_500))
            with pytest.raises(RemoteError):
                await producer.send_batch([Message(topic, bytes(3 << 20))] * 2, timeout_ms=15_000)
        stored = await read_all(namesrv_addr, topic)
        assert [(message.keys, len(message.body)) for message in stored] == [
            ([f"key-{n}"], 400 + n) for n in range(1_500)
        ]

    asyncio.run(run())


def test_producer_uses_the_queues_of_the_order_config(namesrv_addr: str) -> None:
    topic = name_of("Strict")

    async def run() -> None:
        async with (
            AdminClient(namesrv_addr) as admin,
            Producer("strict", namesrv_addr) as producer,
        ):
            await admin.update_namesrv_config({"orderMessageEnable": "true"})
            await admin.create_topic(topic, queues=4, order=True)
            (broker,) = (await admin.cluster_info()).brokers
            assert await admin.kv_get("ORDER_TOPIC_CONFIG", topic) == f"{broker}:4"
            await admin.kv_put("ORDER_TOPIC_CONFIG", topic, f"{broker}:3")
            assert (await admin.topic_route(topic)).order_topic_conf == f"{broker}:3"
            queues = await producer.fetch_publish_message_queues(topic)
            assert queues == [MessageQueue(topic, broker, number) for number in range(3)]
            used = set()
            for number in range(24):
                message = Message(topic, b"x")
                receipt = await producer.send(message, sharding_key=f"k-{number}")
                used.add(receipt.queue.queue_id)
            assert used == {0, 1, 2}
            await admin.update_topic(topic, order=False)
            assert (await admin.topic_route(topic)).order_topic_conf is None

    asyncio.run(run())
