"""Pipeline `redrive`: dead letters sent again, to their groups or to their original topics.

The copies follow the rule of `kourou dlq redrive` (`kourou.model.redrive`), so that neither sends a
dead letter again that the other has sent. The progress of `kourou dlq redrive --all` counts too: it
has processed all dead letters before an offset of each queue. This pipeline does not change that
progress, because it may send any selection of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.model import properties as names
from kourou.model.queue import MessageQueue
from kourou.model.redrive import ORIGIN_TOPICS
from kourou.model.topic import DLQ_PREFIX, RETRY_PREFIX, check_group, dlq_topic, retry_topic
from kourou.pipelines.copies import (
    Lookup,
    Sending,
    candidates,
    marked,
    matching,
    run_copies,
    stored_copies,
)
from kourou.pipelines.report import Report
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.tables import Tables
from kourou.spark.schema import ALL_COLUMNS
from kourou.spark.sink_rows import COPIED_PROPERTIES

LOOKUP: Final = "kourou-redrive"
"""Begins the stamps of redriven messages."""

_NOT_USERS: Final = frozenset(
    (*names.RESERVED, *names.DELIVERY_PROPERTIES, names.SPARK_ID, names.REDRIVEN_FROM)
)
"""Properties that are not copied among the user's; some of them are copied as reserved ones."""

_PROGRESS: Final = "topic STRING, brokerName STRING, queueId INT, redrivenUntil BIGINT"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        groups: the consumer groups, at least one; each has a dead-letter topic.
        sending: the cluster, and the limits.
        since_ms: only dead letters that died at this time or later, epoch ms; None: all.
        until_ms: only those that died at this time or before, epoch ms; None: all.
        tags: only messages with these tags, `a || b`.
        origins: only messages of these original topics; empty: of all.
        reason: only dead letters whose reason contains this text; None: all.
        where: only those for which this SQL expression of Spark is true. Its columns are those of
            the source, offsetMsgId, `group`, originTopic and reason.
        to_topic: send to the original topics, for all groups; otherwise to the group alone.
    """

    groups: Sequence[str]
    sending: Sending
    since_ms: int | None = None
    until_ms: int | None = None
    tags: str = "*"
    origins: Sequence[str] = ()
    reason: str | None = None
    where: str | None = None
    to_topic: bool = False

    def __post_init__(self) -> None:
        for group in self.groups:
            check_group(group)

    def selection(self) -> Selection:
        """Return the selection of the dead letters."""
        return Selection(
            name_server=self.sending.name_server,
            topics=tuple(map(dlq_topic, self.groups)),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            tags=self.tags,
            options=self.sending.options,
        )


def origin_topic() -> Column:
    """Return the original topic of a dead letter, as `kourou.model.redrive.origin_topic` does."""

    def named(name: str) -> Column:
        topic = F.col("properties")[name]
        return F.when(~topic.startswith(RETRY_PREFIX) & ~topic.startswith(DLQ_PREFIX), topic)

    return F.coalesce(*map(named, ORIGIN_TOPICS))


def redriven_properties(*, to_topic: bool) -> tuple[Column, Column]:
    """Return the user properties and the reserved ones of a copy, as `kourou.model.redrive`."""
    origin = F.create_map(F.lit(names.REDRIVEN_FROM), F.col("offsetMsgId"))
    users = F.map_filter("properties", lambda name, _: ~name.isin(*sorted(_NOT_USERS)))
    reserved = sorted(COPIED_PROPERTIES - ({names.RETRY_TOPIC} if to_topic else set()))
    return (
        F.map_concat(users, origin),
        F.map_filter("properties", lambda name, _: name.isin(*reserved)),
    )


def redriven(messages: DataFrame, options: Options, progress: DataFrame) -> DataFrame:
    """Return dead letters as candidates for sending.

    Args:
        messages: rows of dead-letter topics with offsetMsgId.
        options: the destination and the filters.
        progress: topic, brokerName, queueId, and redrivenUntil, the offset before which
            `kourou dlq redrive --all` has sent all.
    """
    letters = messages.withColumns(
        {
            "group": F.substring("topic", len(DLQ_PREFIX) + 1, 255),
            "originTopic": origin_topic(),
            "reason": F.col("properties")[names.DLQ_REASON],
        }
    )
    if options.origins:
        letters = letters.where(F.col("originTopic").isin(*options.origins))
    if options.reason is not None:
        letters = letters.where(F.col("reason").contains(options.reason))
    letters = matching(letters, options.where)
    tracked = letters.join(F.broadcast(progress), ["topic", "brokerName", "queueId"], "left")
    users, reserved = redriven_properties(to_topic=options.to_topic)
    to_group = F.concat(F.lit(RETRY_PREFIX), F.col("group"))
    return candidates(
        tracked,
        topic=F.col("originTopic") if options.to_topic else to_group,
        original=F.col("offsetMsgId"),
        properties=users,
        system_properties=reserved,
        is_sent_before=F.col("queueOffset") < F.col("redrivenUntil"),
        is_sharded=options.to_topic,
    )


def lookup() -> Lookup:
    """Return the recognition of redriven messages."""
    return Lookup(write_id=LOOKUP, original=F.col("properties")[names.REDRIVEN_FROM])


def tables(spark: SparkSession, options: Options, output: Tables) -> DataFrame:
    """Build the table `messages`: what becomes of each dead letter.

    Sent to their topics, the dead letters name the destinations; the plan then has none.
    """
    found = _found(spark, options, {})
    destinations = () if options.to_topic else tuple(map(retry_topic, options.groups))
    copies = stored_copies(spark, options.sending, lookup(), destinations, options.since_ms)
    return output.add("messages", marked(found, copies, destinations, options.sending, lookup()))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Send the dead letters that were not sent before, and return what became of each."""
    with output or Tables() as kept:
        found = _found(spark, options, asyncio.run(_progress(options)))
        return run_copies(spark, found, options.sending, lookup(), kept)


def _found(
    spark: SparkSession, options: Options, progress: Mapping[MessageQueue, int]
) -> DataFrame:
    rows = [(q.topic, q.broker_name, q.queue_id, offset) for q, offset in progress.items()]
    messages = read_messages(spark, options.selection(), tuple(ALL_COLUMNS))
    return redriven(messages, options, spark.createDataFrame(rows, _PROGRESS))


async def _progress(options: Options) -> dict[MessageQueue, int]:
    """Return the offsets of all queues up to which `kourou dlq redrive --all` has sent all."""
    offsets: dict[MessageQueue, int] = {}
    async with options.sending.admin() as admin:
        for group in options.groups:
            offsets |= await admin.redriven_offsets(group)
    return offsets
