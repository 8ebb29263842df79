"""Tests of the pipeline `lag`: forecasts from samples, and samples of a real group."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kourou import ConsumeFromWhere, MessageExt, PushConsumer, PushConsumerConfig
from kourou.clock import SystemClock
from kourou.errors import ConnectFailedError, GroupNotFoundError
from kourou.model.message import Message
from kourou.pipelines import lag
from kourou.pipelines.tables import Tables

Publish = Callable[[Sequence[Message]], list[str]]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = (
    "at TIMESTAMP, `group` STRING, topic STRING, lag BIGINT, `end` BIGINT, consumed BIGINT, "
    "delayMs BIGINT, retentionMs BIGINT"
)


def forecast(
    spark: SparkSession,
    points: Sequence[tuple[float, int, int, int]],
    *,
    retention_ms: int | None = 3_600_000,
    over_ms: int = 3_600_000,
) -> Any:
    """Return the forecast from points of (seconds after noon, end, consumed, delay in ms)."""
    rows = [
        (
            NOON + timedelta(seconds=at_s),
            "billing",
            "orders",
            end - consumed,
            end,
            consumed,
            delay_ms,
            retention_ms,
        )
        for at_s, end, consumed, delay_ms in points
    ]
    [row] = lag.forecast(spark.createDataFrame(rows, SCHEMA), over_ms).collect()
    return row


@pytest.mark.spark
@pytest.mark.slow
def test_a_group_that_is_faster_than_producers_catches_up(spark: SparkSession) -> None:
    row = forecast(spark, [(0, 1_000, 0, 50_000), (10, 1_100, 300, 40_000)])

    assert (row.inPerSecond, row.outPerSecond, row.lag) == (10, 30, 800)
    assert (row.catchUpS, row.expireS, row.state) == (40, None, "catches up")


@pytest.mark.spark
@pytest.mark.slow
def test_a_group_whose_oldest_message_ages_falls_out_of_retention(spark: SparkSession) -> None:
    row = forecast(spark, [(0, 1_000, 0, 3_000_000), (10, 1_200, 100, 3_005_000)])

    assert (row.delayGrowth, row.catchUpS) == (0.5, None)
    assert (row.expireS, row.state) == (1_190, "falls out of retention")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "state"),
    [
        ([(0, 100, 90, 0), (10, 200, 200, 0)], "caught up"),
        ([(0, 100, 90, 5)], "unknown"),
        ([(0, 100, 50, 10), (10, 200, 60, 10)], "falls behind"),
        ([(0, 100, 50, 10), (10, 100, 50, 10)], "idle"),
    ],
)
def test_states_without_a_time(
    spark: SparkSession, points: Sequence[tuple[float, int, int, int]], state: str
) -> None:
    row = forecast(spark, points)

    assert (row.state, row.catchUpS, row.expireS) == (state, None, None)


@pytest.mark.spark
@pytest.mark.slow
def test_without_a_known_retention_there_is_no_time_of_expiry(spark: SparkSession) -> None:
    points = [(0.0, 1_000, 0, 0), (10.0, 1_200, 100, 5_000)]

    row = forecast(spark, points, retention_ms=None)

    assert (row.expireS, row.state) == (None, "falls behind")


@pytest.mark.spark
@pytest.mark.slow
def test_old_samples_do_not_count(spark: SparkSession) -> None:
    points = [(0.0, 0, 0, 0), (100.0, 1_000, 500, 10), (110.0, 1_010, 700, 10)]

    assert forecast(spark, points, over_ms=10_000).outPerSecond == 20


async def consume(namesrv: str, topic: str, group: str, count: int) -> None:
    done = asyncio.Event()
    received: list[bytes] = []

    async def listen(message: MessageExt) -> None:
        received.append(message.body)
        if len(received) == count:
            done.set()

    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(group, namesrv, config=config)
    consumer.subscribe(topic)
    consumer.listen(listen)
    async with consumer, asyncio.timeout(60):
        await done.wait()


@pytest.mark.spark
@pytest.mark.slow
def test_samples_of_a_real_group_are_kept_for_the_next_run(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("t-lagging", b"%d" % n) for n in range(20)])
    asyncio.run(consume(namesrv, "t-lagging", "t-slow", 20))
    publish([Message("t-lagging", b"%d" % n) for n in range(6)])
    options = lag.Options(name_server=namesrv, groups=("t-slow",), every_ms=100, duration_ms=100)

    first = lag.run(spark, options, Tables(str(tmp_path)))
    second = lag.run(spark, replace(options, duration_ms=1), Tables(str(tmp_path)))

    assert (first.metrics["samples"], second.metrics["samples"]) == (2, 1)
    rows = [row for row in second.tables[0].documents() if row["topic"] == "t-lagging"]
    assert [(row["group"], row["lag"]) for row in rows] == [("t-slow", 6)]
    sampled = spark.read.parquet(f"{tmp_path}/samples").where("topic = 't-lagging'")
    assert sampled.select("at").distinct().count() == 3
    assert sampled.selectExpr("min(retentionMs)").collect()[0][0] == 72 * 3_600_000


@pytest.mark.slow
def test_an_unknown_group_and_an_absent_cluster_are_named(namesrv: str) -> None:
    options = lag.Options(name_server=namesrv, groups=("t-absent",))
    with pytest.raises(GroupNotFoundError, match="t-absent"):
        asyncio.run(lag.sample(options, SystemClock()))
    absent = lag.Options(name_server="127.0.0.1:1")
    with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:1"):
        next(lag.samples(absent, SystemClock(), threading.Event()))


@pytest.mark.slow
def test_the_sampling_ends_early_on_request(namesrv: str) -> None:
    pause = threading.Event()
    options = lag.Options(name_server=namesrv, every_ms=60_000, duration_ms=3_600_000)
    found = lag.samples(options, SystemClock(), pause)
    assert next(found) is not None

    pause.set()

    assert list(found) == []
