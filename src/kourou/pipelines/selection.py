"""Selection of the messages that a pipeline reads: topics, a span of store time, tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kourou.errors import UsageError
from kourou.pipelines.event_time import stored_ms
from kourou.spark.limits import SKEW_PARTS
from kourou.spark.option_table import TABLE, Scope
from kourou.spark.read_options import ReadOptions, check_read_options
from kourou.spark.schema import ALL_COLUMNS, COLUMNS, OFFSET_MSG_ID, ddl
from kourou.spark.stream_offsets import StreamOffset, by_name, ranges_of

POSITION: Final = ("topic", "brokerName", "queueId", "queueOffset")
"""The columns that identify a stored message."""

BATCH_OFFSETS_MAX: Final = 1_000_000
"""Maximum number of messages of a batch of a stream, unless the selection has a limit."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The messages that a pipeline reads.

    Attributes:
        name_server: `host:port` of the name servers, separated by ';'.
        topics: the topics, at least one.
        since_ms: only messages stored at this time or later, epoch ms; None: from the earliest.
        until_ms: only messages stored at this time or before, epoch ms; None: up to the latest.
        tags: only messages with these tags, `a || b`.
        options: further options of the format `rocketmq`, such as credentialsFile.
    """

    name_server: str
    topics: Sequence[str]
    since_ms: int | None = None
    until_ms: int | None = None
    tags: str = "*"
    options: Mapping[str, str] = field(default_factory=dict)


def read_messages(
    spark: SparkSession, selection: Selection, columns: Sequence[str] = ()
) -> DataFrame:
    """Return the selected messages.

    The first action on the DataFrame determines the latest messages. Each action pulls again; a
    pipeline therefore writes or caches a table before it computes several results from it.

    Args:
        spark: the session.
        selection: the messages.
        columns: the needed columns of the source, which reads no others; empty: all but
            offsetMsgId.

    Raises:
        UsageError: no topic is selected.
    """
    if not selection.topics:
        raise UsageError("no topic is selected: name at least one")
    names = list(columns or COLUMNS)
    # The filter below needs the store time, even if the result does not contain it.
    read = [*names, *({"storeTimestamp"} - set(names))]
    frames = [
        spark.read.format("rocketmq")
        .schema(ddl({name: ALL_COLUMNS[name] for name in read}))
        .options(**selection.options)
        .option("includeOffsetMsgId", str(OFFSET_MSG_ID.name in read).lower())
        .option("subExpression", selection.tags)
        .option("nameServer", selection.name_server)
        .option("topic", topic)
        .options(**_span(selection))
        .load()
        for topic in selection.topics
    ]
    messages = reduce(DataFrame.unionByName, frames)
    if selection.since_ms is not None:
        messages = messages.where(stored_ms() >= selection.since_ms)
    if selection.until_ms is not None:
        messages = messages.where(stored_ms() <= selection.until_ms)
    return messages.select(*names)


def read_message_stream(
    spark: SparkSession,
    selection: Selection,
    columns: Sequence[str] = (),
    *,
    skew_ms: int | None = None,
) -> DataFrame:
    """Return the selected messages as a stream.

    Args:
        spark: the session.
        selection: the messages. `since_ms` applies to a query without a checkpoint.
        columns: the needed columns of the source, which reads no others; empty: all.
        skew_ms: store time by which queues may be apart at the end of a batch: then a batch spans
            a limited time. None: a batch is limited by its number of messages only.

    Raises:
        UsageError: no topic is selected, or the selection has an end.
    """
    if not selection.topics:
        raise UsageError("no topic is selected: name at least one")
    _refuse_end(selection)
    limits = {"maxOffsetsPerTrigger": str(BATCH_OFFSETS_MAX)}
    if skew_ms is not None:
        limits["maxTimeSpanPerTrigger"] = f"{skew_ms * SKEW_PARTS}ms"
    start = _span(selection) or {"startingOffsets": "earliest"}
    return (
        spark.readStream.format("rocketmq")
        .schema(ddl({name: COLUMNS[name] for name in columns or COLUMNS}))
        .options(**{**limits, **start})
        .options(**selection.options)
        .option("subExpression", selection.tags)
        .option("nameServer", selection.name_server)
        .option("subscribe", ",".join(selection.topics))
        .load()
    )


_RANGE_OPTIONS: Final = frozenset(
    option.name.lower()
    for option in TABLE
    if Scope.BATCH in option.scopes and not option.name.startswith("starting")
)
"""Options of a stream that a batch read of one of its ranges accepts."""


def read_range(
    spark: SparkSession,
    selection: Selection,
    columns: Sequence[str],
    start: object,
    end: object,
) -> DataFrame:
    """Return the messages of one batch of a stream, read again.

    Args:
        spark: the session.
        selection: the messages of the stream.
        columns: the needed columns of the source.
        start: offset at which the batch begins, as JSON in Spark's progress.
        end: offset at which it ends.

    Raises:
        CheckpointError: the offsets are not those of one batch.
    """
    ranges = ranges_of(StreamOffset.from_json(start), StreamOffset.from_json(end))

    assigned: dict[str, dict[str, list[int]]] = {}
    for one in ranges:
        by_broker = assigned.setdefault(one.queue.topic, {})
        by_broker.setdefault(one.queue.broker_name, []).append(one.queue.queue_id)
    kept = {
        name: text for name, text in selection.options.items() if name.lower() in _RANGE_OPTIONS
    }
    return (
        spark.read.format("rocketmq")
        .schema(ddl({name: COLUMNS[name] for name in columns}))
        .options(**kept)
        .option("subExpression", selection.tags)
        .option("nameServer", selection.name_server)
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(by_name({one.queue: one.start for one in ranges})))
        .option("endingOffsets", json.dumps(by_name({one.queue: one.until for one in ranges})))
        .load()
    )


def read_options(selection: Selection) -> ReadOptions:
    """Return the options of the read of a selection, for requests of the driver.

    Raises:
        UsageError: an option is wrong.
    """
    options = {
        **selection.options,
        "nameServer": selection.name_server,
        "subscribe": ",".join(selection.topics),
    }
    return check_read_options(options)


def selected(selection: Selection) -> dict[str, str]:
    """Return the options that decide which messages a stream reads, by name on the command line.

    Raises:
        UsageError: the selection has an end.
    """
    _refuse_end(selection)
    return {"TOPIC": " ".join(sorted(selection.topics)), "--tag": selection.tags}


def _refuse_end(selection: Selection) -> None:
    if selection.until_ms is not None:
        raise UsageError("--to is given, but a stream has no end: omit it, or --follow and --new")


def _span(selection: Selection) -> dict[str, str]:
    """Return the options that have brokers look up the offsets of the span.

    The filter of `read_messages` remains: a queue is not strictly in the order of store times.
    """
    span: dict[str, str] = {}
    if selection.since_ms is not None and "startingOffsets" not in selection.options:
        # Without a message at or after the time, the queue has none to read, which is no error.
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        span |= {"startingTimestamp": str(selection.since_ms), **strategy}
    if selection.until_ms is not None:
        span["endingTimestamp"] = str(selection.until_ms + 1)
    return span
