"""Selection of the messages that a pipeline reads: topics, a span of store time, tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kourou.errors import UsageError
from kourou.pipelines.event_time import stored_ms
from kourou.spark.schema import ALL_COLUMNS, COLUMNS, OFFSET_MSG_ID, ddl

POSITION: Final = ("topic", "brokerName", "queueId", "queueOffset")
"""The columns that identify a stored message."""


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
