"""Pipeline `dedup`: each message of a topic once, by a key.

A message is a duplicate if the same key was kept at most `within_ms` before it, by store time; so
the first of each key is kept, as by Spark's `dropDuplicatesWithinWatermark`. Messages without a key
are all kept and counted.

A stream keeps the message of a key that arrives first. Its state forgets a key when the watermark
has passed `within_ms` after it, so duplicates up to about twice as late are removed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import UsageError
from kourou.pipelines.charts import Bars
from kourou.pipelines.directories import StreamDirectory
from kourou.pipelines.event_time import AHEAD, EventTime, with_event_time
from kourou.pipelines.report import Report, first_rows
from kourou.pipelines.selection import (
    POSITION,
    Selection,
    read_message_stream,
    read_messages,
    selected,
)
from kourou.pipelines.streams import QuerySink, Streaming, TableRun, late_notes
from kourou.pipelines.tables import Tables

PROPERTY_PREFIX: Final = "property:"
_UNBOUNDED_MS: Final = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        selection: the topics; keys of different topics are different.
        key: `id` (the unique id), `key` (the first key), `body`, or `property:NAME`.
        within_ms: maximum time between a message and its duplicate; None: without limit.
        clock: the clock of `within_ms`.
        rows: maximum number of printed rows.
    """

    selection: Selection
    key: str = "id"
    within_ms: int | None = None
    clock: EventTime = EventTime.STORE
    rows: int = 20

    def __post_init__(self) -> None:
        name = self.key.removeprefix(PROPERTY_PREFIX)
        if self.key not in ("id", "key", "body") and name in ("", self.key):
            raise UsageError(f"--by {self.key!r} is unknown: use id, key, body or property:NAME")


def key_column(key: str) -> Column:
    """Return the column of a key as `Options.key` describes it; null if a message has none."""
    if key == "id":
        return F.col("msgId")
    if key == "key":
        return F.get("keys", F.lit(0))
    if key == "body":
        return F.sha2("body", 256)
    return F.col("properties").getItem(key.removeprefix(PROPERTY_PREFIX))


def marked(messages: DataFrame, options: Options) -> DataFrame:
    """Add `dedupKey`, `setAside` and `isDuplicate` to all columns of the messages.

    Args:
        messages: rows with all columns of the source.
        options: the key and the time.
    """
    keyed = _keyed(messages, options)
    place = F.struct(F.unix_millis("eventTime").alias("at"), *POSITION)
    has_key = F.col("dedupKey").isNotNull() & F.col("setAside").isNull()
    groups = (
        keyed.where(has_key)
        .groupBy("topic", "dedupKey")
        .agg(F.sort_array(F.collect_list(place)).alias("places"))
        .where(F.size("places") > 1)
    )
    # Only the places of repeated keys are shuffled twice, and never a body.
    duplicates = groups.select(
        F.explode(F.array_except("places", _kept_places(options.within_ms))).alias("place")
    ).select(*(F.col(f"place.{name}") for name in POSITION), F.lit(True).alias("found"))
    joined = keyed.join(duplicates, list(POSITION), "left")
    return joined.withColumn("isDuplicate", F.coalesce("found", F.lit(False))).drop("found")


def first_arrivals(messages: DataFrame, options: Options) -> DataFrame:
    """Return the messages of a stream that arrive first of their key, and those without a key.

    The metric `ahead` counts the messages that are set aside.

    Args:
        messages: rows with all columns of the source.
        options: the key and the time, which is required.

    Raises:
        UsageError: the time is not given.
    """
    within_ms = _required_within_ms(options)
    is_ahead = F.col("setAside") == AHEAD
    counted = _keyed(messages, options).observe("setAside", F.count_if(is_ahead).alias("ahead"))
    # A message without a key is a duplicate of none.
    own = F.when(F.col("dedupKey").isNull(), F.concat_ws("/", *POSITION))
    return (
        counted.where(F.col("setAside").isNull())
        .withColumn("ownKey", own)
        .withWatermark("eventTime", f"{within_ms} milliseconds")
        .dropDuplicatesWithinWatermark(["topic", "dedupKey", "ownKey"])
        .drop("dedupKey", "ownKey", "setAside", "eventTime")
    )


def _required_within_ms(options: Options) -> int:
    if options.within_ms is None:
        raise UsageError(
            "--within is required with --follow and --new: a stream cannot hold all keys for ever"
        )
    return options.within_ms


def _keyed(messages: DataFrame, options: Options) -> DataFrame:
    timed = with_event_time(messages, options.clock, _UNBOUNDED_MS)
    return timed.withColumn("dedupKey", key_column(options.key))


def unique(found: DataFrame) -> DataFrame:
    """Return the messages that are not duplicates and not set aside, with the source's columns.

    Args:
        found: the marked messages.
    """
    chosen = found.where(~F.col("isDuplicate") & F.col("setAside").isNull())
    return chosen.drop("dedupKey", "setAside", "isDuplicate", "eventTime")


def tables(spark: SparkSession, options: Options, output: Tables) -> tuple[DataFrame, DataFrame]:
    """Build the tables `messages` (each once) and `duplicates` (positions of the others)."""
    # One read, so that both tables are of the same messages.
    found = output.cache(marked(read_messages(spark, options.selection), options))
    once = output.add("messages", unique(found))
    repeated = found.where("isDuplicate OR setAside IS NOT NULL").select(
        *POSITION, "msgId", "dedupKey", "eventTime", "isDuplicate", "setAside"
    )
    return once, output.add("duplicates", repeated)


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Write the messages once, and return the keys with the most duplicates."""
    with output or Tables() as kept:
        kept.check("messages", "duplicates")
        once, repeated = tables(spark, options, kept)
        by_key = (
            repeated.where("isDuplicate")
            .groupBy("topic", "dedupKey")
            .agg(
                F.count(F.lit(1)).alias("duplicates"),
                F.min("eventTime").alias("firstAt"),
                F.max("eventTime").alias("lastAt"),
            )
        )
        shown = first_rows(
            "duplicates",
            by_key,
            ("topic", "dedupKey", "duplicates", "firstAt", "lastAt"),
            (F.desc("duplicates"), "topic", "dedupKey"),
            options.rows,
        )
        counts = repeated.agg(
            F.count_if("isDuplicate").alias("duplicates"),
            F.count_if(F.col("setAside") == AHEAD).alias("ahead"),
        ).collect()[0]
        metrics = {
            "messages": once.count(),
            "without_key": once.where(key_column(options.key).isNull()).count(),
            **counts.asDict(),
        }
    bars = {
        f"{row['topic']} {row['dedup_key']}": float(str(row["duplicates"]))
        for row in shown.documents()
    }
    return Report(
        tables=(shown,),
        metrics=metrics,
        notes=_notes(metrics),
        charts=(
            Bars(
                title="Duplicates by key",
                unit="messages",
                bars=bars,
                more=shown.total - len(shown.rows),
            ),
        ),
    )


def directory(options: Options, streaming: Streaming) -> StreamDirectory:
    """Return the directory of the stream; raises as `first_arrivals` and `StreamDirectory`."""
    definition = {
        "pipeline": "dedup",
        **selected(options.selection),
        "--by": options.key,
        "--within": f"{_required_within_ms(options)} ms",
        "--clock": options.clock.value,
    }
    return StreamDirectory(streaming.directory, definition, ("messages",))


def check(options: Options, streaming: Streaming) -> None:
    """Refuse before Spark starts what `stream` would refuse; raises as `stream`."""
    directory(options, streaming).check(overwrite=streaming.overwrite)


def queries(spark: SparkSession, options: Options, sink: QuerySink) -> None:
    """Add the query of the table `messages`."""
    messages = read_message_stream(spark, options.selection, skew_ms=options.within_ms)
    sink.append("messages", first_arrivals(messages, options))


def stream(spark: SparkSession, options: Options, streaming: Streaming) -> Report:
    """Append the messages once, and return their numbers by topic.

    There is no table of duplicates: their number is that of this run.

    Raises:
        UsageError: as `directory`, and as `StreamDirectory.held`.
        KourouError: the stream failed.
    """
    with TableRun(spark, streaming, directory(options, streaming)) as run_, Tables() as kept:
        queries(spark, options, run_)
        counts = run_.wait()
        counts |= {"ahead": counts.get("ahead", 0), "duplicates": run_.duplicates()}
        once = kept.cache(run_.table("messages"))
        by_topic = once.groupBy("topic").agg(
            F.count(F.lit(1)).alias("messages"),
            F.count_if(key_column(options.key).isNull()).alias("withoutKey"),
            F.min("storeTimestamp").alias("firstAt"),
            F.max("storeTimestamp").alias("lastAt"),
        )
        shown = first_rows("messages", by_topic, by_topic.columns, ("topic",), options.rows)
        totals = {
            "messages": once.count(),
            "without_key": once.where(key_column(options.key).isNull()).count(),
        }
    notes = [*late_notes(counts), *_notes({**totals, "ahead": counts["ahead"]})]
    return Report(tables=(shown,), metrics=totals, notes=notes, stream=counts)


def _notes(counts: Mapping[str, int | float]) -> list[str]:
    notes = []
    if counts["ahead"]:
        notes.append(f"{counts['ahead']:,} messages are set aside: their clocks are ahead")
    if counts["without_key"]:
        notes.append(f"{counts['without_key']:,} messages have no key and are all kept")
    return notes


def _kept_places(within_ms: int | None) -> Column:
    """Return the places of `places` that are kept: each is later than the kept one before it."""
    if within_ms is None:
        return F.slice("places", 1, 1)
    empty = F.slice("places", 1, 0)

    def step(kept: Column, place: Column) -> Column:
        is_kept = (F.size(kept) == 0) | (
            place["at"] > F.element_at(kept, -1)["at"] + F.lit(within_ms)
        )
        return F.when(is_kept, F.concat(kept, F.array(place))).otherwise(kept)

    return F.aggregate("places", empty, step)
