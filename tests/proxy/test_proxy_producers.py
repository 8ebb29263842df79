"""Producers of the proxy: transactions, their checks, scheduled messages and recalls."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from kourou.errors import CallRefusedError
from kourou.http2.grpc_messages import GrpcStatus, message_prefix
from kourou.model.topic import TopicConfig
from kourou.proxy import sends
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code, MessageType, TransactionResolution
from kourou.proxy.times import timestamp
from kourou.testing.loop import run_virtual
from tests.proxy.proxy_rig import Rig, TestClient, with_rig

pytestmark = pytest.mark.usefixtures("each_mode")

PAYMENTS = "Payments"
LATER = "Later"
MIB = 1024 * 1024
URGENT = "Urgent"


async def transaction_clients(
    rig: Rig, topic_type: str = "TRANSACTION"
) -> tuple[TestClient, TestClient]:
    """Return a producer and a consumer of a topic that accepts transactions."""
    await rig.create(TopicConfig(PAYMENTS, 1, 1, attributes={"message.type": topic_type}))
    producer = await rig.producer(PAYMENTS)
    return producer, await rig.consumer(PAYMENTS, kind=ClientType.SIMPLE_CONSUMER)


async def end(producer: TestClient, message_id: str, transaction_id: str, **terms: Any) -> int:
    """End a transaction; return the code of the answer."""
    asked = v2.EndTransactionRequest(
        topic=v2.Resource(name=PAYMENTS),
        message_id=message_id,
        transaction_id=transaction_id,
        **terms,
    )
    answer = await producer.grpc.call("EndTransaction", asked)
    code: int = answer.status.code
    return code


async def received(consumer: TestClient) -> list[bytes]:
    messages = await consumer.receive(PAYMENTS, invisible_ms=10_000)
    return [message.body for message in messages]


def test_message_is_received_after_its_commit_and_not_before() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await transaction_clients(rig)
        entry = await producer.send(b"pay", PAYMENTS, message_type=MessageType.TRANSACTION)
        assert await received(consumer) == []
        resolution = TransactionResolution.COMMIT
        ids = entry.message_id, entry.transaction_id
        assert await end(producer, *ids, resolution=resolution) == Code.OK
        assert await received(consumer) == [b"pay"]
        assert await end(producer, *ids, resolution=resolution) == Code.INTERNAL_SERVER_ERROR

    with_rig(test)


def test_message_is_not_received_after_its_rollback() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await transaction_clients(rig)
        entry = await producer.send(b"pay", PAYMENTS, message_type=MessageType.TRANSACTION)
        resolution = TransactionResolution.ROLLBACK
        code = await end(producer, entry.message_id, entry.transaction_id, resolution=resolution)
        assert code == Code.OK
        assert producer.stream is not None
        await asyncio.sleep(30)
        assert await received(consumer) == []
        assert not producer.stream.messages  # no check of a transaction that has ended

    with_rig(test)


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("topic_type", ["TRANSACTION", "MIXED"])
@pytest.mark.parametrize(
    ("resolution", "bodies"),
    [(TransactionResolution.COMMIT, [b"pay"]), (TransactionResolution.ROLLBACK, [])],
)
def test_check_of_a_transaction_reaches_the_producer_and_its_answer_ends_it(
    resolution: TransactionResolution, bodies: list[bytes], topic_type: str, listen: str
) -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await transaction_clients(rig, topic_type)
        await producer.send(b"pay", PAYMENTS, message_type=MessageType.TRANSACTION)
        assert producer.stream is not None
        command = (await producer.stream.next()).recover_orphaned_transaction_command
        assert command.message.body == b"pay"
        assert command.message.topic.name == PAYMENTS
        ids = command.message.system_properties.message_id, command.transaction_id
        source = v2.TransactionSource.SOURCE_SERVER_CHECK
        assert await end(producer, *ids, resolution=resolution, source=source) == Code.OK
        assert await received(consumer) == bodies

    with_rig(test, listen=listen)


def test_check_of_a_transaction_with_a_compressed_body_reaches_its_producer() -> None:
    async def test(rig: Rig) -> None:
        producer, _ = await transaction_clients(rig)
        await producer.send(
            gzip.compress(b"pay"),
            PAYMENTS,
            message_type=MessageType.TRANSACTION,
            body_encoding=v2.Encoding.GZIP,
        )
        assert producer.stream is not None
        check = await producer.stream.next()
        message = check.recover_orphaned_transaction_command.message
        assert message.body == b"pay", "the language of the client is not asked for"

    with_rig(test)


def test_open_transaction_is_remembered_however_many_others_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sends, "TRANSACTIONS_MAX", 3)

    async def main() -> None:
        transactions = sends.Transactions()
        transactions.put(PAYMENTS, "open", "broker:1", 7, 0)
        for number in range(10):
            transactions.put(PAYMENTS, f"{number}", "broker:1", number, 0)
            transactions.take(PAYMENTS, f"{number}")
        assert transactions.take(PAYMENTS, "open").queue_offset == 7
        for number in range(4):
            transactions.put(PAYMENTS, f"{number}", "broker:1", number, 0)
        with pytest.raises(CallRefusedError):
            transactions.take(PAYMENTS, "0")
        assert transactions.take(PAYMENTS, "1").queue_offset == 1
        await asyncio.sleep(sends.TRANSACTION_S + 1)
        with pytest.raises(CallRefusedError):
            transactions.take(PAYMENTS, "2")

    run_virtual(main())


def test_scheduled_message_is_received_when_it_is_due_and_not_after_its_recall() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(TopicConfig(LATER, 1, 1, attributes={"message.type": "DELAY"}))
        producer = await rig.producer(LATER)
        consumer = await rig.consumer(LATER, kind=ClientType.SIMPLE_CONSUMER)
        due = timestamp(rig.now_ms() + 8_000)
        terms = {"message_type": MessageType.DELAY, "delivery_timestamp": due}
        await producer.send(b"kept", LATER, **terms)
        recalled = await producer.send(b"recalled", LATER, **terms)
        asked = v2.RecallMessageRequest(
            topic=v2.Resource(name=LATER), recall_handle=recalled.recall_handle
        )
        answer = await producer.grpc.call("RecallMessage", asked)
        assert (answer.status.code, answer.message_id) == (Code.OK, recalled.message_id)
        assert await consumer.receive(LATER, invisible_ms=60_000) == []
        [message] = await consumer.receive(LATER, invisible_ms=60_000)
        assert message.body == b"kept"
        assert await consumer.receive(LATER, invisible_ms=60_000) == []

    with_rig(test)


def test_messages_are_received_by_priority() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(TopicConfig(URGENT, 4, 4, attributes={"message.type": "PRIORITY"}))
        producer = await rig.producer(URGENT)
        consumer = await rig.consumer(URGENT, kind=ClientType.SIMPLE_CONSUMER)
        for _ in range(8):
            for priority in (1, 9, 0, 2):  # the highest queue has all above its number
                await producer.send(b"one", URGENT, priority=priority)
            found = await consumer.receive(URGENT, invisible_ms=10_000)
            assert [one.system_properties.priority for one in found] == [9, 2, 1, 0]
            await consumer.ack(*found, topic=URGENT)

    with_rig(test)


@pytest.mark.parametrize("extra", [1, 8 * MIB])
def test_body_above_four_mib_is_refused_by_its_code(extra: int) -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        await producer.send(bytes(4 * MIB))
        answer = await producer.try_send(bytes(4 * MIB + extra))
        assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE
        await producer.send(b"small")

    with_rig(test)


def test_request_above_130_mib_is_refused_before_it_arrives() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        call = producer.grpc.open("SendMessage")
        call.unsent += message_prefix(130 * MIB + 1) + b"the first bytes"
        producer.grpc.pump(1 + 2)  # the stream after Telemetry
        assert await call.rest() == []
        assert call.status is GrpcStatus.RESOURCE_EXHAUSTED
        await producer.send(b"small")

    with_rig(test)


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing"])
def test_retry_and_dead_letter_topics_accept_all_types(topic: str) -> None:
    async def test(rig: Rig) -> None:
        await rig.create(TopicConfig(topic, 1, 1))
        producer = await rig.producer(topic)
        entry = await producer.send(b"again", topic, message_group="g")
        assert entry.offset == 0

    with_rig(test)


@pytest.mark.parametrize("stated", [1, 568_708_240, -2_000_000_000])
def test_message_is_delivered_the_first_time_whatever_its_sender_says(stated: int) -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"one", delivery_attempt=stated)
        [message] = await consumer.receive()
        assert message.system_properties.delivery_attempt == 1

    with_rig(test)
