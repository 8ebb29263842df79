"""Pipeline `replay`: the messages of topics in a span of time, sent to a topic again.

A copy keeps the body, tag, keys, user properties and unique id. Its property KOUROU_REPLAYED_FROM
is the offset message id of the original, by which a repeated run recognizes it
(`kourou.pipelines.copies`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import UsageError
from kourou.model import properties as names
from kourou.model.topic import check_topic
from kourou.pipelines.copies import (
    Lookup,
    Sending,
    candidates,
    check_target,
    marked,
    matching,
    plain_properties,
    run_copies,
    stored_copies,
)
from kourou.pipelines.report import Report
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.tables import Tables
from kourou.spark.schema import ALL_COLUMNS

LOOKUP: Final = "kourou-replay"
"""Begins the stamps of replayed messages."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        selection: the messages to replay.
        into: the topic that receives the copies.
        sending: the cluster that has it, and the limits.
        where: only messages for which this SQL expression of Spark is true; None: all.
        same_topic: `into` may be a topic of the selection. Then its copies are not replayed.
    """

    selection: Selection
    into: str
    sending: Sending
    where: str | None = None
    same_topic: bool = False

    def __post_init__(self) -> None:
        check_topic(self.into)
        check_target(self.into, "--into")
        if self.into in self.selection.topics and not self.same_topic:
            raise UsageError(
                f"--into {self.into} is the topic itself, whose consumers would get its messages "
                "twice: name another topic, or add --same-topic"
            )


def replayed(messages: DataFrame, options: Options) -> DataFrame:
    """Return the messages as candidates for sending.

    Args:
        messages: rows of the source with offsetMsgId.
        options: the target and the filter.
    """
    if options.same_topic:
        is_copy = F.col("properties")[names.REPLAYED_FROM].isNotNull()
        messages = messages.where(~((F.col("topic") == options.into) & is_copy))
    origin = F.create_map(F.lit(names.REPLAYED_FROM), F.col("offsetMsgId"))
    return candidates(
        matching(messages, options.where),
        topic=F.lit(options.into),
        original=F.col("offsetMsgId"),
        properties=F.map_concat(plain_properties(), origin),
    )


def lookup() -> Lookup:
    """Return the recognition of replayed messages."""
    return Lookup(write_id=LOOKUP, original=F.col("properties")[names.REPLAYED_FROM])


def tables(spark: SparkSession, options: Options, output: Tables) -> DataFrame:
    """Build the table `messages`: what becomes of each message."""
    found = replayed(read_messages(spark, options.selection, tuple(ALL_COLUMNS)), options)
    targets = (options.into,)
    copies = stored_copies(spark, options.sending, lookup(), targets, options.selection.since_ms)
    return output.add("messages", marked(found, copies, targets, options.sending, lookup()))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Send the messages that no earlier run has sent, and return what became of each."""
    with output or Tables() as kept:
        found = replayed(read_messages(spark, options.selection, tuple(ALL_COLUMNS)), options)
        targets = {options.into: "--into"}
        return run_copies(spark, found, options.sending, lookup(), kept, targets)
