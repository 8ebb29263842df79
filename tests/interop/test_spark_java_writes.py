"""Tests of writes by Spark to a Java broker 5.5.0, and of reads of the store that it wrote."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.interop.clients import Client
from tests.interop.ledger import Ledger, make_topics
from tests.interop.peer import JavaServer, start_java
from tests.interop.spark_rows import Fields, load, rows_of, rows_stored

DELIVERY_S = 120
OFTEN = "flushConsumeQueueThoroughInterval=1000\n"
"""Option of a broker that writes its checkpoint each second, of each minute by default."""
IN_STORE_ONLY = ("commitLogOffset", "storeSize", "corrupt")


def write(rows: DataFrame, server: JavaServer, topic: str, **options: str) -> None:
    given = {"nameServer": server.namesrv_addr, "topic": topic, "writeId": "interop", **options}
    rows.write.format("rocketmq").options(**given).mode("append").save()


def without_broker(rows: list[Fields]) -> list[Fields]:
    """Return the rows as of a store directory, which does not know the broker's name."""
    return [(row[0], None, *row[2:]) for row in rows]


def test_java_consumer_receives_every_row(
    spark: SparkSession, java_server: JavaServer, java_client: Client
) -> None:
    topic, count = "SparkWritten", 600
    asyncio.run(make_topics(java_server.namesrv_addr, topic))
    rows = spark.range(0, count, 1, 2).selectExpr(
        "CAST(concat('row ', id) AS BINARY) AS body",
        "IF(id % 2 = 0, 'even', 'odd') AS tags",
        "array(concat('key-', id)) AS keys",
        "map('number', CAST(id AS STRING), 'language', '\u2615') AS properties",
    )

    write(rows, java_server, topic)

    lines = java_client.run(
        "consume", java_server.namesrv_addr, "spark-written", topic, "*", count, 0, 120
    )
    got = sorted((line for line in lines if line[0] == "got"), key=lambda line: int(line[7]))
    assert [(line[1], line[4], line[6], line[7]) for line in got] == [
        (f"key-{n}", "odd" if n % 2 else "even", str(len(f"row {n}")), str(n)) for n in range(count)
    ]
    table = load(spark, java_server, topic)
    assert rows_of(table) == rows_stored(java_server, topic)
    stamps = {row.properties["KOUROU_SPARK_ID"] for row in table.collect()}
    assert len(stamps) == count


def test_rows_with_a_deliver_time_come_when_it_is_due(
    spark: SparkSession, java_server: JavaServer
) -> None:
    topic = "SparkScheduled"
    asyncio.run(make_topics(java_server.namesrv_addr, topic))
    due_s = int(time.time()) + 5  # noqa: TID251 - a real broker has real time
    rows = spark.range(0, 10, 1, 1).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS body", f"timestamp_seconds({due_s}) AS deliverTime"
    )

    write(rows, java_server, topic)

    deadline = time.monotonic() + DELIVERY_S  # noqa: TID251
    while len(stored := rows_stored(java_server, topic)) < 10:
        assert time.monotonic() < deadline, stored  # noqa: TID251
        time.sleep(0.2)  # noqa: TID251
    assert sorted(row[11] for row in stored) == [b"%d" % n for n in range(10)]
    table = load(spark, java_server, topic)
    assert rows_of(table) == stored
    assert table.where(f"storeTimestamp < timestamp_seconds({due_s - 1})").count() == 0


def test_store_of_the_java_broker_is_read_live_killed_and_closed(
    spark: SparkSession, jars: str, tmp_path: Path
) -> None:
    topic, store = "SparkStored", tmp_path / "store"

    def stored() -> list[Fields]:
        """Return the rows of the topic in the store; nothing in it is corrupt."""
        table = spark.read.format("rocketmq").option("storePath", str(store)).load()
        assert table.where("corrupt IS NOT NULL").count() == 0
        columns = [name for name in table.columns if name not in IN_STORE_ONLY]
        return rows_of(table.where(f"topic = '{topic}'").select(columns))

    def stored_live() -> list[Fields]:
        """Return the rows up to the durable end, once the broker has declared one."""
        deadline = time.monotonic() + DELIVERY_S  # noqa: TID251 - a real broker has real time
        while True:
            try:
                rows = stored()
            except PySparkException as error:
                if "its checkpoint does not tell" not in str(error):
                    raise
                rows = []
            if rows:
                return rows
            assert time.monotonic() < deadline  # noqa: TID251
            time.sleep(0.2)  # noqa: TID251

    java = start_java(jars, tmp_path / "java", store=store, options=OFTEN)
    ledger = Ledger(topic)
    try:
        asyncio.run(make_topics(java.namesrv_addr, topic))
        asyncio.run(ledger.send(java.namesrv_addr, "first", 300))
        expected = without_broker(rows_stored(java, topic))
        assert all(row in expected for row in stored_live())
        java.kill()
        assert stored() == expected

        java.start_broker()
        asyncio.run(ledger.send(java.namesrv_addr, "second", 300))
        expected = without_broker(rows_stored(java, topic))
        assert len(expected) == 600
    finally:
        java.stop()
    assert stored() == expected
