"""Tests of streaming reads by Spark from a real broker: batches, limits, restarts, new queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.model.message import Message

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Stream:
    """A stream of one topic into Parquet files, started as often as the test wants.

    Args:
        directory: of the output and the checkpoint.
        options: of the source.
    """

    def __init__(
        self, spark: SparkSession, namesrv: str, topic: str, directory: Path, **options: str
    ) -> None:
        self._spark = spark
        self._namesrv = namesrv
        self._topic = topic
        self._output = str(directory / "output")
        self._checkpoint = str(directory / "checkpoint")
        self.options = {"startingOffsets": "earliest", **options}

    def load(self) -> DataFrame:
        source = self._spark.readStream.format("rocketmq").option("nameServer", self._namesrv)
        if self._topic:
            source = source.option("topic", self._topic)
        return source.options(**self.options).load()

    def run(self) -> int:
        """Read what is there now; return the number of batches with rows."""
        writer = self.load().writeStream.format("parquet").option("path", self._output)
        query = (
            writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)

    def rows(self) -> list[Row]:
        return list(self._spark.read.parquet(self._output).collect())

    def bodies(self) -> list[bytes]:
        return sorted(bytes(row.body) for row in self.rows())


def bodies(*numbers: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(*numbers))


def messages(topic: str, *numbers: int) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(*numbers)]


def test_a_stream_continues_from_its_checkpoint_after_each_run(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    stream = Stream(spark, namesrv, "restarts", tmp_path)
    publish(messages("restarts", 100))
    assert stream.run() == 1
    assert stream.bodies() == bodies(100)

    assert stream.run() == 0
    publish(messages("restarts", 100, 150))
    assert stream.run() == 1

    assert stream.bodies() == bodies(150)
    assert len({(row.queueId, row.queueOffset) for row in stream.rows()}) == 150


def test_relative_start_is_that_of_batch_0_after_a_failure_in_it(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    """In the second run, `now` is what -1h is an hour after the first one."""
    publish(messages("settled", 20))
    stream = Stream(spark, namesrv, "settled", tmp_path, startingTimestamp="-1h")
    del stream.options["startingOffsets"]
    checkpoint = str(tmp_path / "checkpoint")

    def fail(_batch: DataFrame, _number: int) -> None:
        raise ValueError("no disk")

    writer = stream.load().writeStream.foreachBatch(fail)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="no disk"):
        query.awaitTermination()
    assert (tmp_path / "checkpoint" / "offsets" / "0").exists()
    publish(messages("settled", 20, 30))

    read: list[bytes] = []
    stream.options["startingTimestamp"] = "now"
    stream.options["startingOffsetsByTimestampStrategy"] = "latest"
    writer = stream.load().writeStream.foreachBatch(
        lambda batch, _: read.extend(bytes(row.body) for row in batch.collect())
    )
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()

    assert sorted(read) == bodies(30)


def test_limit_divides_the_backlog_into_batches(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("limited", 100))
    stream = Stream(spark, namesrv, "limited", tmp_path, maxOffsetsPerTrigger="40")

    assert stream.run() == 3
    assert stream.bodies() == bodies(100)


def test_available_now_ends_although_the_topic_grows(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("growing", 60))
    stream = Stream(spark, namesrv, "growing", tmp_path, maxOffsetsPerTrigger="20")
    seen: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        seen.append(batch.count())
        publish(messages("growing", 1_000 * (number + 1), 1_000 * (number + 1) + 20))

    writer = stream.load().writeStream.foreachBatch(take)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()

    assert seen == [20, 20, 20]


def test_new_queues_of_a_pattern_are_read_from_their_beginning(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    stream = Stream(spark, namesrv, "", tmp_path, subscribePattern="shop_.*")
    publish(messages("shop_north", 10))
    stream.run()
    publish(messages("shop_south", 10, 30))
    stream.run()

    assert stream.bodies() == bodies(30)


def test_group_shows_the_progress_of_the_stream(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("tracked", 50))
    stream = Stream(spark, namesrv, "tracked", tmp_path, commitGroup="spark_progress")
    stream.run()

    async def lag() -> int:
        async with AdminClient(namesrv) as admin:
            return (await admin.describe_group("spark_progress")).lag

    assert asyncio.run(lag()) == 0


def test_deleted_messages_fail_the_stream_with_the_queue_and_a_remedy(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("remade", 40))
    stream = Stream(spark, namesrv, "remade", tmp_path)
    stream.run()

    async def delete() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.delete_topic("remade")

    asyncio.run(delete())
    publish(messages("remade", 100, 103))

    with pytest.raises(PySparkException, match=r"DataLossError.*'remade'.*failOnDataLoss"):
        stream.run()

    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.bodies() == sorted(bodies(40) + bodies(100, 103))


def test_wrong_option_of_a_stream_is_named(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("refused", 1))
    stream = Stream(spark, namesrv, "refused", tmp_path, endingOffsets="latest")

    with pytest.raises(PySparkException) as refused:
        stream.run()

    assert "kourou.errors.ConfigError: endingOffsets " in str(refused.value)
    assert "UnboundLocalError" not in str(refused.value)  # of Spark's planner, if a reader raises
