"""Tests of writes by Spark to a real broker: rows, refusals, streams, and removal of duplicates."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from kourou.client.administration.admin import AdminClient
from kourou.errors import UsageError
from kourou.spark.duplicates import dedup, user_properties

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CreateTopic = Callable[[str], str]


@pytest.fixture
def create_topic(namesrv: str) -> CreateTopic:
    """Return a function that creates a topic of two queues and returns its name."""

    def create(name: str) -> str:
        async def call() -> None:
            async with AdminClient(namesrv) as admin:
                await admin.create_topic(name, queues=2)

        asyncio.run(call())
        return name

    return create


def write(df: DataFrame, namesrv: str, topic: str, **options: str) -> None:
    given = {"nameServer": namesrv, "topic": topic, "writeId": "tests", **options}
    df.write.format("rocketmq").options(**given).mode("append").save()


def read(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", topic)
    return reader.load()


def bodies(df: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row.body) for row in df.select("body").collect())


def numbered(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("CAST(id AS STRING) AS body")


def test_every_row_is_stored_with_all_its_columns(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    topic = create_topic("written")
    rows = spark.range(0, 3_000, 1, 2).select(
        sql.expr("CAST(CAST(id AS STRING) AS BINARY) AS body"),
        sql.expr("IF(id % 2 = 0, 'eu', NULL) AS tags"),
        sql.expr("array(concat('o-', id), 'all') AS keys"),
        sql.expr("map('n', CAST(id AS STRING)) AS properties"),
        sql.expr("concat('s-', id % 5) AS shardingKey"),
        sql.expr("CAST(id AS INT) AS flag"),
    )

    write(rows, namesrv, topic)

    found = {row.flag: row for row in read(spark, namesrv, topic).collect()}
    assert sorted(found) == list(range(3_000))
    row = found[17]
    assert (bytes(row.body), row.tags, row["keys"]) == (b"17", None, ["o-17", "all"])
    assert found[18].tags == "eu"
    assert row.properties["n"] == "17"
    assert row.properties["__SHARDINGKEY"] == "s-2"
    assert row.properties["KOUROU_SPARK_ID"] == "tests:0:0:17"
    assert found[1_500].properties["KOUROU_SPARK_ID"] == "tests:0:1:0"
    queues = {(r.properties["__SHARDINGKEY"], r.queueId) for r in found.values()}
    assert len(queues) == 5, "each key has one queue"


def test_the_column_topic_is_the_destination_without_the_option(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    left, right = create_topic("left"), create_topic("right")
    rows = spark.createDataFrame(
        [(left, "1"), (right, "2"), (left, "3")], "topic STRING, body STRING"
    )

    rows.write.format("rocketmq").option("nameServer", namesrv).option("writeId", "w").mode(
        "append"
    ).save()

    assert set(bodies(read(spark, namesrv, left))) == {b"1", b"3"}
    assert set(bodies(read(spark, namesrv, right))) == {b"2"}


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("'x' AS body", {"writeId": ""}, "writeId is ''"),
        ("'x' AS body", {"topic": "absent"}, "kourou topic create absent"),
        ("'x' AS body", {"nameServer": "127.0.0.1:1"}, "127.0.0.1:1"),
        ("'x' AS body", {"batchSiz": "1"}, "did you mean batchSize?"),
        ("'x' AS value", {}, "the column 'value' cannot be sent"),
        ("1.5D AS body", {}, "column body has the type double"),
    ],
)
def test_a_wrong_write_is_refused_on_the_driver(
    spark: SparkSession,
    namesrv: str,
    create_topic: CreateTopic,
    columns: str,
    options: dict[str, str],
    text: str,
) -> None:
    topic = create_topic("refused")
    given: dict[str, Any] = {"namesrv": namesrv, "topic": topic} | options
    given["namesrv"] = given.pop("nameServer", given["namesrv"])

    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr(columns), **given)

    assert text in str(caught.value)
    assert "TaskSetManager" not in str(caught.value), "no task was started"


def test_overwrite_is_refused(spark: SparkSession, namesrv: str, create_topic: CreateTopic) -> None:
    writer = numbered(spark, 1).write.format("rocketmq").option("nameServer", namesrv)

    with pytest.raises(PySparkException, match="mode overwrite cannot be written to a topic"):
        writer.option("topic", create_topic("kept")).option("writeId", "w").mode("overwrite").save()


def test_a_row_that_cannot_be_sent_fails_the_write_and_is_named(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    rows = spark.range(0, 100, 1, 1).selectExpr("IF(id = 60, NULL, 'x') AS body")

    with pytest.raises(PySparkException) as caught:
        write(rows, namesrv, create_topic("halted"))

    assert "row 60 of partition 0 of batch 0 of tests: the body is null" in str(caught.value)


def test_a_repeated_write_stores_copies_that_dedup_removes(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    topic = create_topic("repeated")
    rows = numbered(spark, 500)
    failing = rows.selectExpr("IF(body = '490', raise_error('broken'), body) AS body")
    with pytest.raises(PySparkException, match="broken"):
        write(failing, namesrv, topic, batchSize="16")
    write(rows, namesrv, topic, batchSize="16")
    write(rows, namesrv, topic, batchSize="16")

    stored = read(spark, namesrv, topic)

    assert stored.count() >= 1_000
    expected = {b"%d" % n: 1 for n in range(500)}
    assert bodies(dedup(stored)) == expected
    assert dedup(stored).columns == stored.columns


def test_dedup_keeps_other_rows_at_the_same_position(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    topic = create_topic("shuffled")
    write(numbered(spark, 10, 1), namesrv, topic)
    write(numbered(spark, 10, 1).selectExpr("concat('other-', body) AS body"), namesrv, topic)

    assert len(bodies(dedup(read(spark, namesrv, topic)))) == 20


def test_dedup_by_key_keeps_one_row_of_each_key_of_a_write(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    topic = create_topic("keyed")
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "CAST(rand() AS STRING) AS body")
    for write_id in ("a", "a", "b"):
        write(rows, namesrv, topic, keyColumn="id", writeId=write_id)

    assert dedup(read(spark, namesrv, topic)).count() == 200


def test_messages_without_a_stamp_are_duplicates_by_unique_id(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    topic = create_topic("copies")
    rows = spark.createDataFrame([("A" * 32, "1"), ("B" * 32, "2")], "msgId STRING, body STRING")
    write(rows, namesrv, topic)
    write(rows, namesrv, topic)
    stored = read(spark, namesrv, topic)
    unstamped = stored.withColumn("properties", user_properties())

    assert stored.count() == 4
    assert {row.msgId for row in stored.select("msgId").collect()} == {"A" * 32, "B" * 32}
    assert bodies(dedup(unstamped)) == {b"1": 1, b"2": 1}


def test_dedup_names_the_columns_that_it_needs(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    with pytest.raises(UsageError, match="lacks properties: call it before select"):
        dedup(read(spark, namesrv, create_topic("narrow")).drop("properties"))


def test_messages_that_were_read_are_copied_with_their_user_properties(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic
) -> None:
    origin, copy = create_topic("origin"), create_topic("copy")
    rows = spark.range(50).selectExpr(
        "CAST(id AS STRING) AS body", "'eu' AS tags", "map('n', CAST(id AS STRING)) AS properties"
    )
    write(rows, namesrv, origin)
    columns = ["msgId", "body", "tags", "keys", "properties", "flag"]
    read_rows = read(spark, namesrv, origin).withColumn("properties", user_properties())

    write(read_rows.select(columns), namesrv, copy)

    def content(topic: str) -> list[tuple[object, ...]]:
        found = read(spark, namesrv, topic).withColumn("properties", user_properties())
        return sorted((r.msgId, bytes(r.body), r.tags, r.properties["n"]) for r in found.collect())

    assert content(copy) == content(origin)


def start_stream(
    df: DataFrame, namesrv: str, topic: str, checkpoint: Path, mode: str = "append"
) -> Any:
    writer = df.writeStream.format("rocketmq").option("nameServer", namesrv).outputMode(mode)
    writer = writer.option("topic", topic).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_a_stream_is_written_with_the_query_and_batch_in_the_stamps(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = create_topic("streamed")
    numbered(spark, 400, 4).write.text(str(tmp_path / "in"))
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 2)
    frame = source.load(str(tmp_path / "in")).withColumnRenamed("value", "body")

    query = start_stream(frame, namesrv, topic, tmp_path / "checkpoint")
    query.awaitTermination()

    stored = read(spark, namesrv, topic)
    assert bodies(stored) == {b"%d" % n: 1 for n in range(400)}
    stamps = [
        row.stamp for row in stored.selectExpr("properties.KOUROU_SPARK_ID AS stamp").collect()
    ]
    assert len(set(stamps)) == 400
    assert {stamp.split(":")[0] for stamp in stamps} == {query.id}
    assert {stamp.split(":")[1] for stamp in stamps} == {"0", "1"}


def test_complete_mode_is_refused(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic, tmp_path: Path
) -> None:
    numbered(spark, 4, 1).write.text(str(tmp_path / "in"))
    counted = spark.readStream.format("text").load(str(tmp_path / "in")).groupBy("value").count()
    frame = counted.selectExpr("value AS body")

    with pytest.raises(PySparkException, match="output mode complete cannot be written"):
        start_stream(
            frame, namesrv, create_topic("all"), tmp_path / "all", "complete"
        ).awaitTermination()


def test_updates_are_written_batch_by_batch_with_a_key(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic, tmp_path: Path
) -> None:
    """Spark itself refuses the update mode for data sources in Python."""
    topic = create_topic("counted")
    numbered(spark, 40, 1).write.text(str(tmp_path / "in"))
    counted = spark.readStream.format("text").load(str(tmp_path / "in")).groupBy("value").count()

    def send(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("value AS id", "CAST(count AS STRING) AS body")
        for _ in range(2):  # as after a crash between the write and the checkpoint
            write(rows, namesrv, topic, keyColumn="id", writeId=f"counts-{batch_id}")

    writer = counted.writeStream.outputMode("update").foreachBatch(send)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()

    assert read(spark, namesrv, topic).count() == 80
    assert bodies(dedup(read(spark, namesrv, topic))) == {b"1": 40}


def test_dedup_of_a_stream_removes_copies(
    spark: SparkSession, namesrv: str, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = create_topic("again")
    for _ in range(2):
        write(numbered(spark, 100), namesrv, topic)
    stored = read(spark, namesrv, topic)
    stored.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(stored.schema).parquet(str(tmp_path / "in"))

    query = (
        dedup(stream)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()

    unique = spark.read.parquet(str(tmp_path / "out"))
    assert bodies(unique) == {b"%d" % n: 1 for n in range(100)}
