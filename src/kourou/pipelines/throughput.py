"""Pipeline `throughput`: windows of message rate, size and latency of topics.

The latency is the time from the producer's clock (born) to the broker's (stored), so it shows the
sending side; `trace` has the latency of deliveries. It is negative if the clocks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.pipelines.charts import Lines
from kourou.pipelines.event_time import (
    AHEAD,
    AHEAD_MAX_MS,
    LATE,
    EventTime,
    born_ms,
    stored_ms,
    with_event_time,
)
from kourou.pipelines.report import Report, epoch_ms, first_rows
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.tables import Tables

COLUMNS: Final = ("topic", "bornTimestamp", "storeTimestamp", "body")

_PLOTTED_MAX: Final = 20_000
"""Maximum number of windows in the charts, the latest ones."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        window_ms: length of a window.
        clock: the clock that assigns messages to windows.
        lateness_ms: with the producers' clock: older messages are set aside as late.
        rows: maximum number of printed rows.
    """

    selection: Selection
    window_ms: int = 60_000
    clock: EventTime = EventTime.STORE
    lateness_ms: int = 600_000
    rows: int = 20


def windows(messages: DataFrame, options: Options) -> DataFrame:
    """Return one row for each topic and window.

    Rows that are set aside by their event time form one row for each topic with a null
    `windowStart`, whose columns `ahead` and `late` count them.

    Args:
        messages: rows with at least `COLUMNS`.
        options: window and clock.
    """
    window_ms = options.window_ms
    timed = with_event_time(messages, options.clock, options.lateness_ms)
    start_ms = F.floor(F.unix_millis("eventTime") / window_ms) * window_ms
    placed = timed.withColumn(
        "windowStart", F.when(F.col("setAside").isNull(), F.timestamp_millis(start_ms))
    )
    latency_ms = F.when(born_ms() - stored_ms() <= AHEAD_MAX_MS, stored_ms() - born_ms())
    size = F.length("body")
    seconds = window_ms / 1000
    return (
        placed.groupBy("topic", "windowStart")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(size).alias("bytes"),
            F.max(size).alias("bytesMax"),
            *(_percentile(latency_ms, share) for share in (50, 95, 99)),
            F.max(latency_ms).alias("latencyMaxMs"),
            F.count_if(F.col("setAside") == AHEAD).alias("ahead"),
            F.count_if(F.col("setAside") == LATE).alias("late"),
        )
        .withColumns(
            {
                "messagesPerSecond": F.round(F.col("messages") / seconds, 3),
                "bytesPerSecond": F.round(F.col("bytes") / seconds, 1),
            }
        )
    )


def tables(spark: SparkSession, options: Options, output: Tables) -> DataFrame:
    """Build the table `windows`."""
    messages = read_messages(spark, options.selection, COLUMNS)
    return output.add("windows", windows(messages, options))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Compute the windows and return the latest ones, with charts of rate and latency."""
    with output or Tables() as kept:
        kept.check("windows")
        every = tables(spark, options, kept)
        placed = every.where("windowStart IS NOT NULL")
        shown = first_rows(
            "windows",
            placed,
            (
                *("windowStart", "topic", "messages", "messagesPerSecond", "bytesPerSecond"),
                *("bytesMax", "latencyP50Ms", "latencyP99Ms", "latencyMaxMs"),
            ),
            (F.desc("windowStart"), "topic"),
            options.rows,
        )
        totals = every.agg(
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _TOTALS)
        ).collect()[0]
        latest = placed.orderBy(F.desc("windowStart"), "topic").limit(_PLOTTED_MAX).collect()
    set_aside = totals.ahead + totals.late
    notes = []
    if set_aside:
        notes.append(
            f"{set_aside:,} messages are in no window: {totals.ahead:,} with a clock more than "
            f"{AHEAD_MAX_MS // 60_000} minutes ahead, {totals.late:,} late"
        )
    return Report(
        tables=(shown,),
        metrics={name: int(totals[name]) for name in _TOTALS},
        notes=notes,
        charts=charts(latest[::-1], options.window_ms),
    )


_TOTALS: Final = ("messages", "bytes", "ahead", "late")


def _percentile(value: Column, share: int) -> Column:
    return F.percentile_approx(value, share / 100).alias(f"latencyP{share}Ms")


def charts(rows: Sequence[Any], window_ms: int) -> tuple[Lines, Lines]:
    """Return the charts of rate and latency.

    A window without messages has the rate 0 and no latency.

    Args:
        rows: the windows in the order of time, rows of the table `windows`.
        window_ms: length of a window.
    """
    rates: dict[str, list[tuple[int, float]]] = {}
    latencies: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        at_ms = epoch_ms(row.windowStart)
        rate = rates.setdefault(row.topic, [])
        if rate and rate[-1][0] + window_ms < at_ms:
            rate += [(at, 0.0) for at in sorted({rate[-1][0] + window_ms, at_ms - window_ms})]
        rate.append((at_ms, row.messagesPerSecond))
        if row.latencyP50Ms is not None:
            latencies.setdefault(f"{row.topic} p50", []).append((at_ms, row.latencyP50Ms))
            latencies.setdefault(f"{row.topic} p99", []).append((at_ms, row.latencyP99Ms))
    return (
        Lines(title="Rate", unit="messages per second", series=rates),
        Lines(
            title="Latency from producer to store",
            unit="milliseconds",
            series=latencies,
            dashed=[name for name in latencies if name.endswith(" p99")],
            gap_ms=window_ms,
        ),
    )
