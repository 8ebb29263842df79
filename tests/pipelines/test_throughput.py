"""Tests of the pipeline `throughput`: windows, rows that are set aside, and a real topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from kourou.model.message import Message
from kourou.pipelines import throughput
from kourou.pipelines.charts import Lines
from kourou.pipelines.event_time import EventTime
from kourou.pipelines.selection import Selection
from kourou.pipelines.tables import Tables

Publish = Callable[[Sequence[Message]], list[str]]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANY = Selection(name_server="", topics=("orders",))
SCHEMA = "topic STRING, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, body BINARY"


def stored(spark: SparkSession, rows: Sequence[tuple[float, float, int]]) -> DataFrame:
    """Return messages of (store time, delay in s, size), with times in seconds after noon."""
    return spark.createDataFrame(
        [
            (
                "orders",
                NOON + timedelta(seconds=at_s - delay_s),
                NOON + timedelta(seconds=at_s),
                b"x" * size,
            )
            for at_s, delay_s, size in rows
        ],
        SCHEMA,
    )


def test_each_window_counts_its_messages_and_bytes(spark: SparkSession) -> None:
    messages = stored(spark, [(0, 0.01, 10), (59.999, 0.03, 30), (60, 0.02, 5)])

    first, second = (
        throughput.windows(messages, throughput.Options(selection=ANY))
        .orderBy("windowStart")
        .collect()
    )

    assert first.windowStart.astimezone(UTC) == NOON
    assert (first.messages, first.bytes, first.bytesMax) == (2, 40, 30)
    assert (first.messagesPerSecond, first.bytesPerSecond) == (0.033, 0.7)
    assert (first.latencyP50Ms, first.latencyMaxMs) == (10, 30)
    assert second.windowStart.astimezone(UTC) == NOON + timedelta(minutes=1)
    assert (second.messages, second.latencyP99Ms) == (1, 20)


def test_by_the_producers_clock_wrong_clocks_and_late_messages_are_counted_apart(
    spark: SparkSession,
) -> None:
    messages = stored(spark, [(0, 1, 1), (0, -601, 1), (0, -599, 1), (0, 301, 1)])
    options = throughput.Options(selection=ANY, clock=EventTime.BORN, lateness_ms=300_000)

    rows = throughput.windows(messages, options).collect()

    [aside] = [row for row in rows if row.windowStart is None]
    assert (aside.messages, aside.ahead, aside.late) == (2, 1, 1)
    placed = {row.windowStart.astimezone(UTC) for row in rows if row.windowStart}
    assert placed == {NOON - timedelta(minutes=1), NOON + timedelta(minutes=9)}


def test_by_store_time_a_wrong_clock_is_in_its_window_and_in_no_percentile(
    spark: SparkSession,
) -> None:
    messages = stored(spark, [(0, 2, 1), (0, -86_400, 1)])

    [row] = throughput.windows(messages, throughput.Options(selection=ANY)).collect()

    assert (row.messages, row.ahead, row.late) == (2, 0, 0)
    assert (row.latencyP50Ms, row.latencyMaxMs) == (2_000, 2_000)


def test_charts_show_windows_without_messages_as_zero_and_without_latency() -> None:
    rows = [
        Row(
            windowStart=NOON + timedelta(minutes=minute),
            topic="orders",
            messagesPerSecond=5.0,
            latencyP50Ms=2,
            latencyP99Ms=9,
        )
        for minute in (0, 1, 3, 9)
    ]

    rates, latencies = throughput.charts(rows, 60_000)

    first_ms = rates.series["orders"][0][0]
    assert [((at - first_ms) // 60_000, rate) for at, rate in rates.series["orders"]] == [
        *[(0, 5.0), (1, 5.0), (2, 0.0), (3, 5.0), (4, 0.0), (8, 0.0), (9, 5.0)]
    ]
    assert [len(points) for points in latencies.series.values()] == [4, 4]
    assert latencies.gap_ms == 60_000
    assert latencies.dashed == ["orders p99"]


def test_a_real_topic_is_counted_written_and_plotted(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("t-rates", b"x" * (n + 1), tags="eu" if n % 2 else "us") for n in range(100)])
    selection = Selection(name_server=namesrv, topics=("t-rates",))
    options = throughput.Options(selection=selection, window_ms=3_600_000)

    report = throughput.run(spark, options, Tables(str(tmp_path)))

    assert report.metrics == {"messages": 100, "bytes": 5_050, "ahead": 0, "late": 0}
    assert sum(int(str(row["messages"])) for row in report.tables[0].documents()) == 100
    rates = report.charts[0]
    assert isinstance(rates, Lines)
    assert rates.series.keys() == {"t-rates"}
    written = spark.read.parquet(f"{tmp_path}/windows")
    assert written.selectExpr("sum(messages)").collect()[0][0] == 100


def test_a_selection_reads_its_tags_and_its_span_only(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("t-span", b"x", tags="eu" if n % 4 else "us") for n in range(40)])

    def count(**changes: object) -> int | float:
        selection = Selection(name_server=namesrv, topics=("t-span",), **changes)  # type: ignore[arg-type]
        return throughput.run(spark, throughput.Options(selection=selection)).metrics["messages"]

    soon = int(datetime.now(UTC).timestamp() * 1000) + 60_000
    assert count(tags="us") == 10
    assert count(until_ms=soon) == 40
    assert count(since_ms=soon) == 0
