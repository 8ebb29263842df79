"""Tests of streaming reads by Spark from a real broker: batches, limits, restarts, new queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

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
        return source.option("topic", self._topic).options(**self.options).load()

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


def test_limit_divides_the_backlog_into_batches(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("limited", 100))
    stream = Stream(spark, namesrv, "limited", tmp_path, maxOffsetsPerTrigger="40")

    assert stream.run() == 3
    assert stream.bodies() == bodies(100)
