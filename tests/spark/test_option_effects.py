"""Tests of what options of a batch read select, with Spark and a real broker."""

from __future__ import annotations

import asyncio
import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.model.message import Message
from tests.spark.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def topics(publish: Publish) -> tuple[str, str]:
    """Two topics with the bodies a0 to a9, and b0 to b9."""
    for letter in "ab":
        publish([Message(f"effects-{letter}", f"{letter}{n}".encode()) for n in range(10)])
    return "effects-a", "effects-b"


def read(spark: SparkSession, namesrv: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").option("nameServer", namesrv).options(**options).load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_list_and_pattern_select_topics(
    spark: SparkSession, namesrv: str, topics: tuple[str, str]
) -> None:
    both = [f"{letter}{n}" for letter in "ab" for n in range(10)]

    assert bodies(read(spark, namesrv, subscribe=", ".join(topics))) == both
    assert bodies(read(spark, namesrv, subscribePattern="effects-.")) == both


def test_assignment_selects_queues(
    spark: SparkSession, namesrv: str, topics: tuple[str, str]
) -> None:
    first, _ = topics
    broker = read(spark, namesrv, topic=first).first().brokerName
    assign = {first: {broker: [1]}}

    rows = read(spark, namesrv, assign=json.dumps(assign)).collect()

    assert {(row.topic, row.queueId) for row in rows} == {(first, 1)}
    with pytest.raises(PySparkException, match="assign names queues that do not exist"):
        read(spark, namesrv, assign=json.dumps({first: {broker: [9]}})).count()


def test_times_select_messages_by_store_time(
    spark: SparkSession, namesrv: str, topics: tuple[str, str]
) -> None:
    first, _ = topics
    table = read(spark, namesrv, topic=first).selectExpr(
        "queueOffset", "queueId", "unix_millis(storeTimestamp) AS at"
    )
    rows = sorted(table.collect(), key=lambda row: row.at)
    middle = rows[5].at
    latest = {"startingOffsetsByTimestampStrategy": "latest"}

    later = read(spark, namesrv, topic=first, startingTimestamp=str(middle), **latest)
    earlier = read(spark, namesrv, topic=first, endingTimestamp=str(middle))

    assert later.count() == sum(row.at >= middle for row in rows)
    assert earlier.count() == sum(row.at < middle for row in rows)
    assert read(spark, namesrv, topic=first, startingTimestamp="-1d").count() == 10
    with pytest.raises(PySparkException, match="startingTimestamp: no message of queue"):
        read(spark, namesrv, topic=first, startingTimestamp=str(rows[-1].at + 60_000)).count()


def test_columns_are_left_out_when_not_included(
    spark: SparkSession, namesrv: str, topics: tuple[str, str]
) -> None:
    frame = read(spark, namesrv, topic=topics[0], includeBody="false", includeProperties="false")

    assert not {"body", "properties"} & set(frame.columns)
    assert frame.count() == len(frame.select("topic", "msgId").collect()) == 10


def test_offset_message_ids_are_a_column_when_included(
    spark: SparkSession, namesrv: str, topics: tuple[str, str]
) -> None:
    frame = read(spark, namesrv, topic=topics[0], includeOffsetMsgId="true")

    async def look_up(text: str) -> bytes:
        async with AdminClient(namesrv) as admin:
            return (await admin.message_by_id(text)).body

    rows = frame.select("offsetMsgId", "body").collect()
    assert len({row.offsetMsgId for row in rows}) == 10
    assert asyncio.run(look_up(rows[3].offsetMsgId)) == rows[3].body
    assert "offsetMsgId" not in read(spark, namesrv, topic=topics[0]).columns


def test_rows_of_a_task_are_limited(
    spark: SparkSession, namesrv: str, topics: tuple[str, str]
) -> None:
    limited = read(spark, namesrv, topic=topics[0], maxRecordsPerPartition="3")

    assert limited.rdd.getNumPartitions() == 4
    assert read(spark, namesrv, topic=topics[0], minPartitions="2").rdd.getNumPartitions() == 2
    assert len(bodies(limited)) == 10


def test_namespace_is_added_to_the_topic_and_hidden_in_rows(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("effects%scoped", b"x")])

    [row] = read(spark, namesrv, topic="scoped", namespace="effects").collect()

    assert (row.topic, bytes(row.body)) == ("scoped", b"x")
