"""Pipeline `dead-letters`: dead letters by topic, group, reason and fingerprint, with samples.

The reason is the property KOUROU_DLQ_REASON, which Kourou's consumers set. Java's consumers give
none: their dead letters are grouped by topic and group only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.model import properties as names
from kourou.model.topic import DLQ_PREFIX
from kourou.pipelines.charts import Bars
from kourou.pipelines.directories import StreamDirectory
from kourou.pipelines.report import Report, first_rows
from kourou.pipelines.selection import (
    POSITION,
    Selection,
    read_message_stream,
    read_messages,
    selected,
)
from kourou.pipelines.streams import QuerySink, Streaming, TableRun
from kourou.pipelines.tables import Tables

COLUMNS: Final = (*POSITION, "msgId", "properties", "reconsumeTimes", "storeTimestamp")

SAMPLES_MAX: Final = 3
"""Dead letters named for each group of the result, the latest ones."""

_VARIABLE_PARTS: Final = (
    (r"'[^']*'|\"[^\"]*\"", "'…'"),
    (r"\b0[xX][0-9a-fA-F]+\b", "#"),
    (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b", "#"),
    (r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b", "#"),
    (r"[0-9]+", "#"),
    (r"\s+", " "),
)
"""Patterns and replacements that remove from a reason what differs from message to message."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        selection: the dead-letter topics, and the span in which the messages died.
        is_of_all_groups: the topics are those of all groups, so a stream accepts further ones when
            it is continued.
        rows: maximum number of printed rows.
    """

    selection: Selection
    is_of_all_groups: bool = False
    rows: int = 20


def fingerprint(reason: Column) -> Column:
    """Return a reason without numbers, ids and quoted values, which are equal for one cause."""
    text = reason
    for pattern, replacement in _VARIABLE_PARTS:
        text = F.regexp_replace(text, pattern, replacement)
    return F.trim(text)


def letters(messages: DataFrame) -> DataFrame:
    """Return one row for each dead letter: its group, origin, reason and fingerprint.

    Args:
        messages: rows of dead-letter topics with at least `COLUMNS`.
    """
    of = F.col("properties").getItem
    reason = F.nullif(F.trim(of(names.DLQ_REASON)), F.lit(""))
    position = F.concat_ws("", "brokerName", F.lit("/"), "queueId", F.lit("@"), "queueOffset")
    return messages.select(
        F.substring("topic", len(DLQ_PREFIX) + 1, 255).alias("group"),
        F.coalesce(of(names.DLQ_ORIGIN_TOPIC), of(names.RETRY_TOPIC)).alias("topic"),
        reason.alias("reason"),
        fingerprint(reason).alias("fingerprint"),
        "msgId",
        position.alias("position"),
        F.col("reconsumeTimes").alias("deliveries"),
        F.col("storeTimestamp").alias("diedAt"),
    )


def causes(found: DataFrame) -> DataFrame:
    """Return one row for each group, origin and fingerprint, with samples.

    Args:
        found: the dead letters.
    """
    latest = F.slice(
        F.sort_array(F.collect_list(F.struct("diedAt", "msgId", "position")), asc=False),
        1,
        SAMPLES_MAX,
    )
    return (
        found.groupBy("group", "topic", "fingerprint")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.count_distinct("msgId").alias("ids"),
            F.min("diedAt").alias("firstAt"),
            F.max("diedAt").alias("lastAt"),
            F.max("deliveries").alias("deliveriesMax"),
            F.max_by("reason", "diedAt").alias("reason"),
            latest.alias("samples"),
        )
        .withColumns(
            {
                "sampleIds": F.transform("samples", lambda one: one.msgId),
                "samples": F.transform("samples", lambda one: one.position),
            }
        )
    )


def tables(spark: SparkSession, options: Options, output: Tables) -> tuple[DataFrame, DataFrame]:
    """Build the tables `letters` and `causes`."""
    found = output.add("letters", letters(read_messages(spark, options.selection, COLUMNS)))
    return found, output.add("causes", causes(found))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Group the dead letters and return the most frequent causes."""
    with output or Tables() as kept:
        kept.check("letters", "causes")
        return report(*tables(spark, options, kept), options)


def directory(options: Options, streaming: Streaming) -> StreamDirectory:
    """Return the directory of the stream; raises as `StreamDirectory`."""
    definition = {"pipeline": "dead-letters", **selected(options.selection)}
    if options.is_of_all_groups:
        definition["TOPIC"] = "those of all groups"
    return StreamDirectory(streaming.directory, definition, ("letters",))


def check(options: Options, streaming: Streaming) -> None:
    """Refuse before Spark starts what `stream` would refuse; raises as `stream`."""
    directory(options, streaming).check(overwrite=streaming.overwrite)


def queries(spark: SparkSession, options: Options, sink: QuerySink) -> None:
    """Add the query of the table `letters`."""
    sink.append("letters", letters(read_message_stream(spark, options.selection, COLUMNS)))


def stream(spark: SparkSession, options: Options, streaming: Streaming) -> Report:
    """Append the dead letters, and return the most frequent causes.

    No letter is late: they are in no window.

    Raises:
        UsageError: as `directory`, and as `StreamDirectory.held`.
        KourouError: the stream failed.
    """
    with TableRun(spark, streaming, directory(options, streaming)) as run_, Tables() as kept:
        queries(spark, options, run_)
        counts = run_.wait()
        found = kept.cache(run_.table("letters"))
        return replace(report(found, causes(found), options), stream=counts)


def report(found: DataFrame, grouped: DataFrame, options: Options) -> Report:
    """Return the most frequent causes.

    Args:
        found: the dead letters.
        grouped: their causes.
        options: the number of rows.
    """
    shown = first_rows(
        "causes",
        grouped,
        ("group", "topic", "messages", "firstAt", "lastAt", "samples", "reason"),
        (F.desc("messages"), "group", "topic", "fingerprint"),
        options.rows,
    )
    counts = found.agg(
        F.count(F.lit(1)).alias("messages"),
        F.count_distinct("group").alias("groups"),
        F.count_if(F.col("reason").isNull()).alias("without_reason"),
    ).collect()[0]
    notes = []
    if counts.without_reason:
        notes.append(
            f"{counts.without_reason:,} dead letters have no reason: only Kourou's consumers "
            "give one"
        )
    bars: dict[str, float] = {}
    for row in shown.documents():
        label = f"{row['group']}: {row['reason'] or 'no reason'} ({row['topic']})"
        bars[label] = bars.get(label, 0) + float(str(row["messages"]))
    return Report(
        tables=(shown,),
        metrics={**counts.asDict(), "causes": shown.total},
        notes=notes,
        charts=(
            Bars(
                title="Dead letters by cause",
                unit="messages",
                bars=bars,
                more=shown.total - len(shown.rows),
            ),
        ),
    )
