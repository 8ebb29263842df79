"""A correct program of a user, with the types that a type checker must infer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
from typing import assert_type

from kourou import (
    AdminClient,
    ConsumerHealth,
    Idempotent,
    Message,
    MessageExt,
    MessageQueue,
    PoppedMessage,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    SeenInMemory,
    SeenInSqlite,
    SendReceipt,
    SimpleConsumer,
    blocking,
    by_key,
)


async def send() -> None:
    async with Producer("orders", "localhost:9876", config=ProducerConfig()) as producer:
        assert_type(producer, Producer)
        order = Message("OrderPlaced", b"{}", tags="eu", keys=["o-17"], properties={"a": "b"})
        assert_type(await producer.send(order, timeout_ms=500), SendReceipt)
        assert_type(await producer.send_batch([order]), list[SendReceipt])
        assert_type(await producer.submit(order), asyncio.Future[SendReceipt])
        assert_type(await producer.send_oneway(order), None)


async def consume() -> None:
    consumer = PushConsumer("billing", "localhost:9876")
    consumer.subscribe("OrderPlaced", tags="eu || us")

    @consumer.listen
    async def charge(message: MessageExt) -> None:
        assert_type(message.body, bytes)
        assert_type(message.keys, list[str])
        assert_type(message.tags, str | None)

    await charge(await anext(aiter(consumer)))  # a decorated listener is still the same function

    @PushConsumer("audit", "localhost:9876").listen_in_batches
    def note_all(messages: list[MessageExt]) -> int:
        return len(messages)

    assert_type(note_all([]), int)

    async with consumer:
        await consumer.run_forever()
        assert_type(consumer.health(), ConsumerHealth)
        async for message in consumer:
            assert_type(message, MessageExt)


async def poll() -> None:
    async with PullConsumer("reports", "localhost:9876") as consumer:
        queues = await consumer.fetch_subscribe_message_queues("OrderPlaced")
        assert_type(queues, list[MessageQueue])
        await consumer.assign(queues)
        assert_type(await consumer.poll(timeout_ms=1000), list[MessageExt])
        assert_type(await consumer.committed(queues[0]), int | None)


async def receive() -> None:
    async with SimpleConsumer("photos", "localhost:9876", start="earliest") as consumer:
        consumer.subscribe("PhotoUploaded")
        messages = await consumer.receive(max_messages=8, invisible_ms=30_000)
        assert_type(messages, list[PoppedMessage])
        async with consumer.message_scope(messages[0], renew_ms=600_000) as message:
            assert_type(message.receipt.revive_at_ms, int)
        await consumer.change_invisible(messages[1], 5_000)
        await consumer.ack_all(messages[2:])


async def administer() -> None:
    async with AdminClient("localhost:9876") as admin:
        assert_type(await admin.topic_list(), list[str])


def charge_once(message: MessageExt, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO charges VALUES (?)", (message.keys[0],))


async def note(message: MessageExt) -> None:
    print(message.msg_id)


def wait_instead() -> None:
    with blocking.Producer("orders", "localhost:9876") as producer:
        assert_type(producer, blocking.Producer)
        assert_type(producer.send(Message("T", b""), timeout_ms=500), SendReceipt)
        assert_type(producer.submit(Message("T", b"")), concurrent.futures.Future[SendReceipt])
    consumer = blocking.PushConsumer("billing", "localhost:9876")

    @consumer.listen_orderly
    def book(message: MessageExt) -> int:
        return len(message.body)

    assert_type(book(next(iter(consumer))), int)
    consumer.listen(Idempotent(charge_once, seen=SeenInSqlite("charges.db"), identity=by_key))
    PushConsumer("x", "localhost:9876").listen(Idempotent(note, seen=SeenInMemory()))
    with consumer:
        for message in consumer:
            assert_type(message, MessageExt)
    with blocking.SimpleConsumer("photos", "localhost:9876") as photos:
        for popped in photos.receive():
            assert_type(popped, PoppedMessage)
            with photos.message_scope(popped) as same:
                assert_type(same.body, bytes)
    with blocking.AdminClient("localhost:9876") as admin:
        assert_type(admin.topic_list(), list[str])
