"""Pipeline `throughput`: windows of message rate, size and latency of topics.

The latency is the time from the producer's clock (born) to the broker's (stored), so it shows the
sending side; `trace` has the latency of deliveries. It is negative if the clocks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.pipelines.charts import Lines
from kourou.pipelines.directories import StreamDirectory
from kourou.pipelines.event_time import (
    AHEAD,
    AHEAD_MAX_MS,
    LATE,
    LATENESS_DEFAULT_MS,
    EventTime,
    born_ms,
    stored_ms,
    watermark_delay_ms,
    with_event_time,
)
from kourou.pipelines.report import Report, epoch_ms, first_rows
from kourou.pipelines.selection import (
    Selection,
    read_message_stream,
    read_messages,
    selected,
)
from kourou.pipelines.streams import LateRows, QuerySink, Streaming, TableRun, late_notes
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
        lateness_ms: with the producers' clock: older messages are set aside as late. In streams:
            store time for which a window stays open for the messages of other queues; None: as
            `event_time.LATENESS_DEFAULT_MS`.
        rows: maximum number of printed rows.
    """

    selection: Selection
    window_ms: int = 60_000
    clock: EventTime = EventTime.STORE
    lateness_ms: int | None = None
    rows: int = 20

    @property
    def lateness(self) -> int:
        """`lateness_ms`, or the default of the clock."""
        return LATENESS_DEFAULT_MS[self.clock] if self.lateness_ms is None else self.lateness_ms


def windows(messages: DataFrame, options: Options) -> DataFrame:
    """Return one row for each topic and window; of a stream, when the watermark closes the window.

    Messages that are set aside by their event time form rows with a null `windowStart`, one for
    each topic and window of store time, whose columns `ahead` and `late` count them.

    Args:
        messages: rows with at least `COLUMNS`.
        options: window and clock.
    """
    delay_ms = watermark_delay_ms(options.clock, options.lateness)
    placed = _placed(messages, options).withWatermark("placedAt", f"{delay_ms} milliseconds")
    latency_ms = F.when(born_ms() - stored_ms() <= AHEAD_MAX_MS, stored_ms() - born_ms())
    size = F.length("body")
    seconds = options.window_ms / 1000
    is_placed = F.col("setAside").isNull().alias("isPlaced")
    return (
        placed.groupBy("topic", is_placed, _window(options))
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
        .select(
            "topic",
            F.when(F.col("isPlaced"), F.col("window.start")).alias("windowStart"),
            *("messages", "bytes", "bytesMax", "latencyP50Ms", "latencyP95Ms", "latencyP99Ms"),
            *("latencyMaxMs", "ahead", "late", "messagesPerSecond", "bytesPerSecond"),
        )
    )


def late_messages(messages: DataFrame, options: Options, watermark_ms: int) -> int:
    """Return the number of messages whose window a watermark has closed.

    Args:
        messages: as of `windows`.
        options: window and clock.
        watermark_ms: the watermark, epoch ms.
    """
    closed = F.unix_millis(F.col("window.end")) <= watermark_ms
    return int(_placed(messages, options).select(_window(options)).where(closed).count())


def _placed(messages: DataFrame, options: Options) -> DataFrame:
    """Add `setAside`, and `placedAt`: the event time, or the store time of rows set aside."""
    timed = with_event_time(messages, options.clock, options.lateness)
    at = F.when(F.col("setAside").isNull(), F.col("eventTime")).otherwise(F.col("storeTimestamp"))
    return timed.withColumn("placedAt", at)


def _window(options: Options) -> Column:
    return F.window("placedAt", f"{options.window_ms} milliseconds").alias("window")


def tables(spark: SparkSession, options: Options, output: Tables) -> DataFrame:
    """Build the table `windows`."""
    messages = read_messages(spark, options.selection, COLUMNS)
    return output.add("windows", windows(messages, options))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Compute the windows and return the latest ones, with charts of rate and latency."""
    with output or Tables() as kept:
        kept.check("windows")
        return report(tables(spark, options, kept), options)


def directory(options: Options, streaming: Streaming) -> StreamDirectory:
    """Return the directory of the stream; raises as `StreamDirectory`."""
    definition = {
        "pipeline": "throughput",
        **selected(options.selection),
        "--window": f"{options.window_ms} ms",
        "--clock": options.clock.value,
        "--lateness": f"{options.lateness} ms",
    }
    return StreamDirectory(streaming.directory, definition, ("windows",))


def check(options: Options, streaming: Streaming) -> None:
    """Refuse before Spark starts what `stream` would refuse; raises as `stream`."""
    directory(options, streaming).check(overwrite=streaming.overwrite)


def queries(spark: SparkSession, options: Options, sink: QuerySink) -> None:
    """Add the query of the table `windows`."""
    messages = read_message_stream(spark, options.selection, COLUMNS, skew_ms=options.lateness)

    def late(batch: DataFrame, watermark_ms: int) -> int:
        return late_messages(batch, options, watermark_ms)

    sink.append(
        "windows",
        windows(messages, options),
        LateRows(selection=options.selection, columns=COLUMNS, count=late),
    )


def stream(spark: SparkSession, options: Options, streaming: Streaming) -> Report:
    """Append the windows that close, and return the latest ones.

    Raises:
        UsageError: as `directory`, and as `StreamDirectory.held`.
        KourouError: the stream failed.
    """
    with TableRun(spark, streaming, directory(options, streaming)) as run_, Tables() as kept:
        queries(spark, options, run_)
        counts = run_.wait()
        found = report(kept.cache(run_.table("windows")), options)
        still_open = run_.open_rows()
    notes = [*found.notes]
    if still_open:
        notes.append(
            f"windows still open: {still_open:,}; each is written when messages that are "
            f"{watermark_delay_ms(options.clock, options.lateness) / 1000:g} s younger than its "
            "end have arrived"
        )
    return replace(
        found, notes=[*notes, *late_notes(counts)], stream={**counts, "open": still_open}
    )


def report(every: DataFrame, options: Options) -> Report:
    """Return the latest windows of the table, with charts of rate and latency."""
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
