"""Rows that Spark reads from a Java broker, and the messages that they must equal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kourou import Message, MessageExt, Producer, ProducerConfig
from kourou.remoting.network import format_address
from tests.interop.ledger import read_all
from tests.interop.peer import JavaServer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENT = ProducerConfig(send_timeout_ms=60_000)

Fields = tuple[Any, ...]


def load(spark: SparkSession, server: JavaServer, topics: str, **options: str) -> DataFrame:
    """Return the table of topics, separated by commas."""
    reader = spark.read.format("rocketmq").option("nameServer", server.namesrv_addr)
    return reader.option("subscribe", topics).options(**options).load()


def rows_of(frame: DataFrame) -> list[Fields]:
    """Return the rows as tuples, sorted by topic, broker, queue and offset."""
    rows = (
        tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()
    )
    return sorted(rows, key=lambda row: row[:4])


def rows_stored(server: JavaServer, topics: str) -> list[Fields]:
    """Return the same of all messages of the topics, as a pull consumer receives them."""

    async def read() -> list[MessageExt]:
        parts = [await read_all(server.namesrv_addr, topic) for topic in topics.split(",")]
        return [message for part in parts for message in part]

    return sorted(map(_fields, asyncio.run(read())), key=lambda row: row[:4])


def _fields(message: MessageExt) -> Fields:
    """Return the columns of a message, in the order of the table."""
    return (
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.msg_id,
        message.tags,
        message.keys,
        message.properties,
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.body,
        format_address(message.born_host),
        time_of(message.born_at_ms),
        time_of(message.store_at_ms),
    )


def time_of(epoch_ms: int) -> datetime:
    """Return the value of a timestamp column of a session in UTC."""
    return (EPOCH + timedelta(milliseconds=epoch_ms)).replace(tzinfo=None)


def send(server: JavaServer, messages: Iterable[Message]) -> None:
    """Send messages; all must be acknowledged."""

    async def submit() -> None:
        async with Producer("interop-spark", server.namesrv_addr, config=PATIENT) as producer:
            for future in [await producer.submit(message) for message in messages]:
                await future

    asyncio.run(submit())


def numbered(topic: str, *numbers: int) -> list[Message]:
    """Return messages whose bodies are the numbers of a range."""
    return [Message(topic, b"%d" % number) for number in range(*numbers)]


def bodies(*numbers: int) -> list[bytes]:
    """Return the bodies of `numbered`, sorted."""
    return sorted(b"%d" % number for number in range(*numbers))
