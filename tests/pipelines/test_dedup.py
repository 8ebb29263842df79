"""Tests of the pipeline `dedup`: which messages are kept, by each key and within a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.pipelines import dedup
from kourou.pipelines.event_time import EventTime
from kourou.pipelines.selection import Selection
from kourou.pipelines.tables import Tables
from kourou.spark.schema import COLUMNS, ddl

Publish = Callable[[Sequence[Message]], list[str]]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANY = Selection(name_server="", topics=("orders",))


def stored(
    spark: SparkSession, keys: Sequence[tuple[str | None, float]], *, ahead_s: float = 0
) -> DataFrame:
    """Return messages of (first key, store time in s after noon), one queue each second offset."""
    rows = [
        {
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": n % 2,
            "queueOffset": n // 2,
            "msgId": f"id-{n}",
            "keys": [] if key is None else [key, "other"],
            "properties": {} if key is None else {"order": key},
            "body": (key or "").encode(),
            "bornTimestamp": NOON + timedelta(seconds=at_s + ahead_s),
            "storeTimestamp": NOON + timedelta(seconds=at_s),
        }
        for n, (key, at_s) in enumerate(keys)
    ]
    return spark.createDataFrame([_row(one) for one in rows], ddl())


def _row(values: dict[str, Any]) -> tuple[Any, ...]:
    names = list(COLUMNS)
    return tuple(values.get(name) for name in names)


def kept(messages: DataFrame, **options: Any) -> list[str]:
    found = dedup.unique(dedup.marked(messages, dedup.Options(selection=ANY, **options)))
    assert found.columns == list(COLUMNS)
    return sorted(row.msgId for row in found.collect())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("key", ["key", "body", "property:order"])
def test_the_first_message_of_each_key_is_kept(spark: SparkSession, key: str) -> None:
    messages = stored(spark, [("b", 5), ("a", 1), ("a", 0), ("b", 9), ("c", 3)])

    assert kept(messages, key=key) == ["id-0", "id-2", "id-4"]


@pytest.mark.spark
@pytest.mark.slow
def test_unique_ids_are_the_default_key(spark: SparkSession) -> None:
    assert len(kept(stored(spark, [("a", 0), ("a", 0)]))) == 2


@pytest.mark.spark
@pytest.mark.slow
def test_messages_without_a_key_are_all_kept(spark: SparkSession) -> None:
    messages = stored(spark, [(None, 0), (None, 1), ("a", 0), ("a", 1)])

    assert kept(messages, key="key") == ["id-0", "id-1", "id-2"]


@pytest.mark.spark
@pytest.mark.slow
def test_within_a_time_a_key_is_kept_again_after_it_since_the_kept_one(
    spark: SparkSession,
) -> None:
    messages = stored(spark, [("a", 0), ("a", 6), ("a", 10), ("a", 10.001), ("a", 16)])

    # id-1 does not extend the time of id-0, as with dropDuplicatesWithinWatermark.
    assert kept(messages, key="key", within_ms=10_000) == ["id-0", "id-3"]


@pytest.mark.spark
@pytest.mark.slow
def test_messages_with_equal_times_are_kept_in_the_order_of_their_positions(
    spark: SparkSession,
) -> None:
    assert kept(stored(spark, [("a", 0)] * 4), key="key") == ["id-0"]


@pytest.mark.spark
@pytest.mark.slow
def test_by_the_producers_clock_wrong_clocks_are_set_aside(spark: SparkSession) -> None:
    messages = stored(spark, [("a", 0), ("a", 1)], ahead_s=601)

    assert kept(messages, key="key", clock=EventTime.BORN) == []
    assert kept(messages, key="key") == ["id-0"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_real_topic_is_written_once_with_the_positions_of_duplicates(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("t-twice", b"%d" % n, keys=[f"o-{n % 30}"]) for n in range(50)])
    selection = Selection(name_server=namesrv, topics=("t-twice",))

    report = dedup.run(spark, dedup.Options(selection=selection, key="key"), Tables(str(tmp_path)))

    assert report.metrics == {"messages": 30, "without_key": 0, "duplicates": 20, "ahead": 0}
    assert report.tables[0].total == 20
    once = spark.read.parquet(f"{tmp_path}/messages")
    assert once.selectExpr("count(distinct keys[0])").collect()[0][0] == 30
    repeated = spark.read.parquet(f"{tmp_path}/duplicates")
    positions = ["topic", "brokerName", "queueId", "queueOffset"]
    assert once.select(positions).union(repeated.select(positions)).distinct().count() == 50


@pytest.mark.parametrize("key", ["", "ids", "property:", "Property:x"])
def test_an_unknown_key_is_refused_before_spark_starts(key: str) -> None:
    with pytest.raises(UsageError, match="use id, key, body or property:NAME"):
        dedup.Options(selection=ANY, key=key)
