"""Tests of PySpark 4.1, which reads and writes in batch, and refuses streams with the reason.

`make test-pyspark PYSPARK=4.1` runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("kourou-tests")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Serving.start(tmp_path_factory.mktemp("kourou")) as serving:
        yield serving.namesrv


def create_topic(namesrv: str, topic: str) -> None:
    async def create() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(topic, queues=2)

    asyncio.run(create())


def test_rows_written_are_read_in_batch(spark: SparkSession, namesrv: str) -> None:
    create_topic(namesrv, "written")
    options = {"nameServer": namesrv, "topic": "written"}
    rows = spark.range(0, 500, 1, 2).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body")

    rows.write.format("rocketmq").options(**options, writeId="w").mode("append").save()

    table: DataFrame = spark.read.format("rocketmq").options(**options).load()
    assert {bytes(row.body) for row in table.collect()} == {b"%d" % n for n in range(500)}
    assert table.count() == 500


def test_stream_is_refused_with_the_reason(
    spark: SparkSession, namesrv: str, tmp_path: Path
) -> None:
    assert pyspark.__version__.startswith("4.1.")
    create_topic(namesrv, "refused")
    options = {"nameServer": namesrv, "topic": "refused"}
    table = spark.readStream.format("rocketmq").options(**options).load()
    writer = table.writeStream.format("noop").option("checkpointLocation", str(tmp_path))

    with pytest.raises(PySparkException) as refused:
        writer.trigger(availableNow=True).start().awaitTermination()

    text = str(refused.value)
    assert f"UsageError: PySpark {pyspark.__version__} has no admission control" in text
    assert "install pyspark>=4.2, or use spark.read" in text
    assert "UnboundLocalError" not in text
