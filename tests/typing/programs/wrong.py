"""Mistakes that a type checker must report: one on each marked line, and no others."""

from __future__ import annotations

import sqlite3

from kourou import Idempotent, Message, MessageExt, Producer, SeenInMemory, blocking


def with_connection(message: MessageExt, db: sqlite3.Connection) -> None:
    print(message, db)


async def asynchronous(producer: Producer) -> None:
    await producer.send("text")  # wrong
    await producer.send(Message("T", "text"))  # wrong
    await producer.send(Message("T", b""), timeout="3 s")  # wrong
    Message("T", b"", delay_level="3")  # wrong
    Idempotent(with_connection, seen=SeenInMemory())  # wrong
    producer.send(Message("T", b"")).msg_id  # wrong


def waiting(producer: blocking.Producer) -> None:
    producer.send("text")  # wrong
    producer.send(Message("T", b""), timeout="3 s")  # wrong
    receipt = producer.send(Message("T", b""))
    receipt.no_such_name  # wrong
