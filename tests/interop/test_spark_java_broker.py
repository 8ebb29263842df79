"""Tests of batch reads by Spark from a Java broker 5.5.0: messages, filters, times, groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kourou import (
    CompressionType,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    SubscriptionGroup,
    TransactionProducer,
    TransactionState,
)
from kourou.blocking import AdminClient
from tests.interop.clients import Client
from tests.interop.ledger import Ledger, make_topics, read_all
from tests.interop.peer import JavaServer, start_java
from tests.interop.spark_rows import PATIENT, load, rows_of, rows_stored, send

MIXED, BATCHES = "SparkMixed", "SparkBatches"
JAVA_MESSAGES = 64
DELIVERY_S = 120


@pytest.fixture(scope="module")
def topics(strict_java: JavaServer, java_client: Client) -> str:
    """Return the topics of messages of all producers, and of batches stored as one record."""
    asyncio.run(send_all(strict_java.namesrv_addr))
    java_client.run("produce", strict_java.namesrv_addr, MIXED, JAVA_MESSAGES)
    return f"{MIXED},{BATCHES}"


async def send_all(namesrv: str) -> None:
    """Send messages that make records of all kinds."""
    with AdminClient(namesrv) as admin:
        admin.create_topic(MIXED, queues=2)
        admin.create_topic(BATCHES, queues=2, attributes={"queue.type": "BatchCQ"})
    for kind in CompressionType:
        config = ProducerConfig(compress_type=kind, send_timeout_ms=60_000)
        async with Producer("spark-all", namesrv, config=config) as producer:
            for size in (1, 100, 5_000, 100_000):
                body = kind.name.encode() * size
                await producer.send(Message(MIXED, body, tags=kind.name, flag=size))
    rare = [
        Message(MIXED, bytes(range(256)), flag=-1, keys=["a", "b-\u00e4"]),
        Message(MIXED, b"x", properties={"number": "7", "\u2615": "\U0001f375"}, tags="rare"),
    ]
    async with Producer("spark-all", namesrv, config=PATIENT) as producer:
        for message in rare:
            await producer.send(message)
        await producer.send_batch([Message(MIXED, b"%d" % n, keys=[str(n)]) for n in range(40)])
    ledger = Ledger(BATCHES)
    await ledger.send_batches(namesrv, "kourou", 20, 7)
    await ledger.send(namesrv, "kourou", 20)


@pytest.fixture(params=["memory", "disk"])
def answers(request: pytest.FixtureRequest, strict_java: JavaServer) -> Iterator[None]:
    """Have the broker answer pulls as from memory, or as from disk with much smaller limits."""
    option = "accessMessageInMemoryMaxRatio"
    with AdminClient(strict_java.namesrv_addr) as admin:
        before = admin.broker_config(strict_java.broker_addr)[option]
        percent = {"memory": before, "disk": "0"}[request.param]
        admin.update_broker_config(strict_java.broker_addr, {option: percent})
        yield
        admin.update_broker_config(strict_java.broker_addr, {option: before})


@pytest.mark.usefixtures("answers")
def test_rows_equal_the_messages_of_a_pull_consumer(
    spark: SparkSession, strict_java: JavaServer, topics: str
) -> None:
    rows = rows_of(load(spark, strict_java, topics))

    assert len(rows) == 4 * len(CompressionType) + 2 + 40 + JAVA_MESSAGES + 20 * 7 + 20
    assert rows == rows_stored(strict_java, topics)


@pytest.fixture(scope="module")
def large(strict_java: JavaServer) -> str:
    """Return a topic of one queue with 300 messages of 1 byte, then 2 KB, then 20 KB."""
    topic = "SparkLarge"
    asyncio.run(make_topics(strict_java.namesrv_addr, topic, queues=1))
    sizes = [1] * 100 + [2_000] * 100 + [20_000] * 100
    send(strict_java, [Message(topic, b"x" * size, flag=n) for n, size in enumerate(sizes)])
    return topic


@pytest.mark.usefixtures("answers")
def test_pull_limits_of_the_broker_lose_no_message(
    spark: SparkSession, strict_java: JavaServer, large: str
) -> None:
    """Answers end at 32 messages or 256 KiB from memory, and at 8 messages or 64 KiB from disk."""
    rows = load(spark, strict_java, large).select("queueOffset", "flag").collect()

    assert sorted(row.queueOffset for row in rows) == [*range(300)]
    assert sorted(row.flag for row in rows) == [*range(300)]


@pytest.mark.usefixtures("answers")
def test_tags_and_sql_select_messages(
    spark: SparkSession, strict_java: JavaServer, topics: str
) -> None:
    tagged = load(spark, strict_java, topics, subExpression="even || ZLIB || kourou")
    table = load(
        spark,
        strict_java,
        topics,
        subExpressionType="sql",
        subExpression="number > 10 AND number <= 40 AND language IS NOT NULL",
    )

    everything = rows_stored(strict_java, topics)
    assert rows_of(tagged) == [row for row in everything if row[5] in ("even", "ZLIB", "kourou")]
    assert len(rows_of(tagged)) == JAVA_MESSAGES // 2 + 4 + 20
    assert sorted(int(row.properties["number"]) for row in table.collect()) == [*range(11, 41)]


def test_times_select_by_store_time(
    spark: SparkSession, strict_java: JavaServer, topics: str
) -> None:
    everything = rows_stored(strict_java, MIXED)
    times = sorted({row[14] for row in everything})
    assert len(times) > 10
    for first, last in ((times[3], times[-4]), (times[0], times[1]), (times[5], times[-1])):
        start, end = (f"{one.isoformat()}Z" for one in (first, last))
        table = load(spark, strict_java, MIXED, startingTimestamp=start, endingTimestamp=end)
        assert rows_of(table) == [row for row in everything if first <= row[14] < last]


def test_delayed_transactional_and_retried_messages_are_rows(
    spark: SparkSession, strict_java: JavaServer
) -> None:
    namesrv, topic, group = strict_java.namesrv_addr, "SparkLate", "spark-late"
    retry = f"%RETRY%{group}"

    async def commit(_: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async def refuse(message: MessageExt) -> None:
        raise RuntimeError(message.msg_id)

    async def until_stored(name: str) -> None:
        async with asyncio.timeout(DELIVERY_S):
            while len(await read_all(namesrv, name)) < 4:  # noqa: ASYNC110 - a real broker
                await asyncio.sleep(0.2)

    async def main() -> None:
        await make_topics(namesrv, topic)
        async with TransactionProducer("spark-payers", namesrv, check=commit) as producer:
            for state in TransactionState:
                message = Message(topic, state.name.encode())
                begun = await producer.begin_transaction(message, timeout_ms=60_000)
                if state is not TransactionState.UNKNOWN:
                    await producer.end_transaction(begun, state, timeout_ms=60_000)
            await producer.send(Message(topic, b"level", delay_level=1), timeout_ms=60_000)
            at_ms = int(time.time() * 1000) + 2_000  # noqa: TID251 - a real broker has real time
            await producer.send(Message(topic, b"timer", deliver_at_ms=at_ms), timeout_ms=60_000)
            await until_stored(topic)
        config = PushConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET, route_refresh_interval_ms=1_000
        )
        consumer = PushConsumer(group, namesrv, config=config)
        consumer.subscribe(topic)
        consumer.listen(refuse)
        async with consumer:
            await until_stored(retry)

    with AdminClient(namesrv) as admin:
        for name in (group, "spark-payers"):
            admin.create_group(SubscriptionGroup(name))
    asyncio.run(main())

    rows = rows_of(load(spark, strict_java, f"{topic},{retry}"))

    assert rows == rows_stored(strict_java, f"{topic},{retry}")
    assert sorted(row[11] for row in rows if row[0] == topic) == [
        b"COMMIT", b"UNKNOWN", b"level", b"timer",
    ]  # fmt: skip
    retried = [row for row in rows if row[0] == retry]
    assert retried
    assert all(row[10] > 0 for row in retried)
    assert {row[4] for row in retried} <= {row[4] for row in rows if row[0] == topic}


def test_unknown_group_is_refused_with_the_option_and_the_remedy(
    spark: SparkSession, strict_java: JavaServer, topics: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        load(spark, strict_java, topics, consumerGroup="no-such-group").count()

    text = str(refused.value)
    assert "ConfigError: consumerGroup is 'no-such-group', which broker 'broker-a'" in text
    assert "run `kourou group create no-such-group`" in text


def test_sql_without_property_filter_is_refused_with_the_setting(
    spark: SparkSession, java_server: JavaServer
) -> None:
    send(java_server, [Message("SparkUnfiltered", b"x", properties={"number": "7"})])

    sql = {"subExpressionType": "sql", "subExpression": "number > 3"}
    with pytest.raises(PySparkException, match="enablePropertyFilter"):
        load(spark, java_server, "SparkUnfiltered", **sql).count()


def test_ipv6_hosts_are_columns(
    spark: SparkSession, jars: str, java_client: Client, tmp_path: Path
) -> None:
    """Brokers of an IPv6 network store addresses of 16 bytes, beside those of 4."""
    java = start_java(jars, tmp_path, options="brokerIP1=[::1]\n")
    try:
        java_client.run("produce", java.namesrv_addr, "SparkIpv6", 8)
        rows = rows_of(load(spark, java, "SparkIpv6"))
        assert rows == rows_stored(java, "SparkIpv6")
        assert {row[12].rpartition(":")[0] for row in rows} == {"[::1]"}
    finally:
        java.stop()
