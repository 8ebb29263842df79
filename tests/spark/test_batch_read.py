"""Tests of batch reads by Spark from a real broker: rows, offset ranges and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kourou.model.message import Message
from kourou.spark.schema import COLUMNS, arrow_schema, ddl

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def topic(publish: Publish) -> str:
    """A topic of 1,000 messages in two queues: o-0, o-1, ..., the even ones tagged eu, else us."""
    publish(
        [
            Message(
                "orders",
                b"body %d" % n,
                tags="us" if n % 2 else "eu",
                keys=[f"o-{n}", f"all-{n}"],
                properties={"n": str(n)},
                flag=n,
            )
            for n in range(1_000)
        ]
    )
    return "orders"


def read(spark: SparkSession, namesrv: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", topic)
    return reader.options(**options).load()


def refusal(read_it: DataFrame) -> str:
    """Return the error text of a failing read."""
    with pytest.raises(PySparkException) as caught:
        read_it.collect()
    return str(caught.value)


def test_the_format_is_found_by_its_name_and_has_the_documented_schema(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    assert read(spark, namesrv, topic).schema == StructType.fromDDL(ddl())


def test_the_arrow_schema_is_the_one_that_spark_derives(spark: SparkSession) -> None:
    derived = to_arrow_schema(StructType.fromDDL(ddl()), timezone="UTC")

    assert arrow_schema(list(COLUMNS)).equals(derived)


def test_every_message_is_read_once_with_all_columns(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    rows = read(spark, namesrv, topic).orderBy("flag").collect()

    assert [row.body for row in rows] == [b"body %d" % n for n in range(1_000)]
    assert len({(row.queueId, row.queueOffset) for row in rows}) == 1_000
    seven = rows[7]
    assert (seven.topic, seven.tags, seven["keys"]) == ("orders", "us", ["o-7", "all-7"])
    assert seven.properties["n"] == "7"
    assert seven.properties["UNIQ_KEY"] == seven.msgId
    assert seven.brokerName
    assert seven.queueId in (0, 1)
    assert (seven.sysFlag, seven.reconsumeTimes) == (0, 0)
    assert seven.bornHost.startswith("127.0.0.1:")
    age = datetime.now(UTC).replace(tzinfo=None) - seven.storeTimestamp
    assert abs(age.total_seconds()) < 600


def test_tags_are_filtered_by_the_broker(spark: SparkSession, namesrv: str, topic: str) -> None:
    rows = read(spark, namesrv, topic, subExpression="eu || other").select("flag").collect()

    assert sorted(row.flag for row in rows) == list(range(0, 1_000, 2))


def test_offsets_choose_a_range_with_an_exclusive_end(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    [broker] = {
        row.brokerName for row in read(spark, namesrv, topic).select("brokerName").collect()
    }
    starting = json.dumps({topic: {broker: {"0": 10, "1": -2}}})
    ending = json.dumps({topic: {broker: {"0": 13, "1": 2}}})

    rows = read(spark, namesrv, topic, startingOffsets=starting, endingOffsets=ending).collect()

    assert sorted((row.queueId, row.queueOffset) for row in rows) == [
        (0, 10),
        (0, 11),
        (0, 12),
        (1, 0),
        (1, 1),
    ]


def test_user_schema_reads_only_its_columns(spark: SparkSession, namesrv: str, topic: str) -> None:
    rows = (
        spark.read.format("rocketmq")
        .schema("flag INT, body BINARY")
        .option("nameServer", namesrv)
        .option("topic", topic)
        .load()
        .orderBy("flag")
        .limit(2)
        .collect()
    )

    assert [row.asDict() for row in rows] == [
        {"flag": 0, "body": b"body 0"},
        {"flag": 1, "body": b"body 1"},
    ]


def test_limit_ends_the_read_and_the_session_stays_usable(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    frame = read(spark, namesrv, topic)

    assert len(frame.take(3)) == 3
    assert frame.count() == 1_000


def test_a_long_topic_is_read_by_several_tasks(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("long", b"%d" % n) for n in range(12_000)])

    frame = read(spark, namesrv, "long", maxPartitions="2")

    assert frame.rdd.getNumPartitions() == 2
    assert frame.selectExpr("count(distinct body)").first()[0] == 12_000


def test_an_empty_topic_is_an_empty_frame(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("one", b"x")])
    frame = read(spark, namesrv, "one")
    [row] = frame.collect()
    until = json.dumps({"one": {row.brokerName: {"0": 0, "1": 0}}})

    assert read(spark, namesrv, "one", endingOffsets=until).collect() == []


def test_spark_sql_returns_the_same_rows(spark: SparkSession, namesrv: str, topic: str) -> None:
    read(spark, namesrv, topic).createOrReplaceTempView("orders")

    counted = spark.sql("SELECT tags, count(*) AS n FROM orders GROUP BY tags ORDER BY tags")

    assert [tuple(row) for row in counted.collect()] == [("eu", 500), ("us", 500)]


def test_missing_offset_fails_the_read_unless_loss_is_allowed(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    broker = read(spark, namesrv, topic).first().brokerName
    beyond = {"endingOffsets": json.dumps({topic: {broker: {"0": 10**6, "1": -1}}})}

    text = refusal(read(spark, namesrv, topic, **beyond))

    assert "DataLossError: endingOffsets of queue 0 of 'orders'" in text
    assert read(spark, namesrv, topic, failOnDataLoss="false", **beyond).count() == 1_000


def test_a_wrong_option_is_refused_by_load_with_the_nearest_known(
    spark: SparkSession, namesrv: str, topic: str
) -> None:
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        read(spark, namesrv, topic, startingOffset="earliest")


def test_a_topic_that_does_not_exist_is_named(spark: SparkSession, namesrv: str) -> None:
    text = refusal(read(spark, namesrv, "no_such_topic"))

    assert "no_such_topic" in text
    assert "NoRouteError" in text


def test_an_absent_name_server_is_named(spark: SparkSession, topic: str) -> None:
    text = refusal(read(spark, "127.0.0.1:1", topic))

    assert "ConnectFailedError" in text
    assert "127.0.0.1:1" in text


def test_credentials_come_from_a_file_and_are_absent_from_plans(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("accessKey: alice\nsecretKey: s3cr3t-key\n")
    file.chmod(0o644)
    frame = read(spark, namesrv, topic, credentialsFile=str(file))
    assert "chmod 600" in refusal(frame)
    file.chmod(0o600)
    assert frame.count() == read(spark, namesrv, topic).count()
    plan = frame._jdf.queryExecution().toString()
    assert "s3cr3t-key" not in plan


def test_actions_of_one_table_see_the_same_messages(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("grown", b"1")])
    before = read(spark, namesrv, "grown")
    assert before.count() == 1
    publish([Message("grown", b"2")])

    assert before.count() == 1
    assert read(spark, namesrv, "grown").count() == 2
