"""Tests of streams of a Java broker 5.5.0: limits, restarts, killed brokers, group progress."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kourou import SubscriptionGroup
from kourou.blocking import AdminClient
from tests.interop.ledger import make_topics
from tests.interop.mqadmin import Mqadmin
from tests.interop.peer import JavaServer, start_java
from tests.interop.spark_rows import bodies, numbered, send

PROGRESS_S = 300
"""Timeout of a query's progress on a busy machine."""


class Stream:
    """A stream of one topic into Parquet files.

    Args:
        directory: of the output and the checkpoint.
        options: of the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        server: JavaServer,
        topic: str,
        directory: Path,
        **options: str,
    ) -> None:
        self._spark = spark
        self._source = {"nameServer": server.namesrv_addr, "topic": topic}
        self._output = str(directory / "output")
        self._checkpoint = str(directory / "checkpoint")
        self.options = {"startingOffsets": "earliest", **options}

    def run(self) -> list[int]:
        """Read what is there now; return the number of rows of each batch."""
        query = self._writer().trigger(availableNow=True).start()
        query.awaitTermination()
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    def start(self) -> StreamingQuery:
        """Read until the query is stopped."""
        return self._writer().trigger(processingTime="100 milliseconds").start()

    def bodies(self) -> list[bytes]:
        """Return the bodies of the output, sorted."""
        return sorted(bytes(row.body) for row in self._rows().collect())

    def positions(self) -> set[tuple[int, int]]:
        """Return the queue and offset of each row of the output."""
        return {(row.queueId, row.queueOffset) for row in self._rows().collect()}

    def wait(self, query: StreamingQuery, count: int) -> None:
        """Wait until the output has `count` rows."""
        deadline = time.monotonic() + PROGRESS_S  # noqa: TID251 - a real broker has real time
        while not Path(self._output, "_spark_metadata").exists() or self._rows().count() < count:
            error = query.exception()
            assert error is None, str(error)
            assert time.monotonic() < deadline, query.lastProgress  # noqa: TID251
            time.sleep(0.2)  # noqa: TID251

    def _rows(self) -> DataFrame:
        schema = "queueId INT, queueOffset BIGINT, body BINARY"  # there may be no file yet
        return self._spark.read.schema(schema).parquet(self._output)

    def _writer(self) -> DataStreamWriter:
        source = self._spark.readStream.format("rocketmq").options(**self._source, **self.options)
        writer = source.load().writeStream.format("parquet").option("path", self._output)
        return writer.option("checkpointLocation", self._checkpoint)


def test_stream_continues_in_limited_batches(
    spark: SparkSession, strict_java: JavaServer, tmp_path: Path
) -> None:
    topic = "SparkStreamed"
    asyncio.run(make_topics(strict_java.namesrv_addr, topic))
    stream = Stream(spark, strict_java, topic, tmp_path, maxOffsetsPerTrigger="40")
    send(strict_java, numbered(topic, 100))

    assert stream.run() == [40, 40, 20]
    assert stream.run() == []
    send(strict_java, numbered(topic, 100, 150))
    assert stream.run() == [40, 10]
    assert stream.bodies() == bodies(150)


def test_stream_survives_kills_of_the_broker(
    spark: SparkSession, jars: str, tmp_path: Path
) -> None:
    topic = "SparkKilled"
    java = start_java(jars, tmp_path / "java")
    stream = Stream(spark, java, topic, tmp_path, maxOffsetsPerTrigger="100", failOnDataLoss="true")
    try:
        asyncio.run(make_topics(java.namesrv_addr, topic))
        send(java, numbered(topic, 1_000))
        query = stream.start()
        for end in (2_000, 3_000):
            stream.wait(query, end - 1_800)
            java.kill()
            java.start_broker()
            send(java, numbered(topic, end - 1_000, end))
        stream.wait(query, 3_000)
        query.stop()
        send(java, numbered(topic, 3_000, 3_100))
        stream.run()
    finally:
        java.stop()
    assert stream.bodies() == bodies(3_100)
    assert len(stream.positions()) == 3_100


def test_mqadmin_shows_the_progress_of_a_stream(
    spark: SparkSession, strict_java: JavaServer, tmp_path: Path
) -> None:
    topic, group = "SparkTracked", "spark-progress"
    asyncio.run(make_topics(strict_java.namesrv_addr, topic, queues=1))
    with AdminClient(strict_java.namesrv_addr) as admin:
        admin.create_group(SubscriptionGroup(group))
    send(strict_java, numbered(topic, 50))
    stream = Stream(spark, strict_java, topic, tmp_path, commitGroup=group)
    stream.run()
    send(strict_java, numbered(topic, 7))

    with Mqadmin(strict_java.namesrv_addr, tmp_path) as mqadmin:
        printed = mqadmin.run("consumerProgress", "-g", group, "-t", topic)

    [line] = [line for line in printed.out.splitlines() if line.startswith(topic)]
    assert line.split()[2:6] == ["0", "57", "50", "7"], printed.out


def test_topic_made_again_is_data_loss(
    spark: SparkSession, strict_java: JavaServer, tmp_path: Path
) -> None:
    topic = "SparkRemade"
    asyncio.run(make_topics(strict_java.namesrv_addr, topic))
    stream = Stream(spark, strict_java, topic, tmp_path)
    send(strict_java, numbered(topic, 40))
    stream.run()
    with AdminClient(strict_java.namesrv_addr) as admin:
        admin.delete_topic(topic)
    asyncio.run(make_topics(strict_java.namesrv_addr, topic))
    send(strict_java, numbered(topic, 100, 103))

    with pytest.raises(PySparkException, match=rf"DataLossError.*'{topic}'.*failOnDataLoss"):
        stream.run()

    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.bodies() == sorted(bodies(40) + bodies(100, 103))
