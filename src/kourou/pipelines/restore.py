"""Pipeline `restore`: messages of an archive, sent to topics again.

A copy keeps the body, tag, keys, user properties and unique id, by which a repeated run recognizes
it (`kourou.pipelines.copies`). A message that the topic still holds counts as sent before; so a
topic that lost a part of its messages gets that part. Archived messages of one unique id, such as
those of a producer's retry, are one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import UsageError
from kourou.model.topic import check_topic
from kourou.pipelines.archive import read_archive
from kourou.pipelines.archive_files import Archive
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
from kourou.pipelines.event_time import stored_ms
from kourou.pipelines.report import Report
from kourou.pipelines.selection import POSITION
from kourou.pipelines.tables import Tables

LOOKUP: Final = "kourou-restore"
"""Begins the stamps of restored messages."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        directory: the archive.
        sending: the cluster that receives the messages, and the limits.
        topics: only messages of these topics; empty: of all.
        into: the topic that receives them; None: each goes to the topic that it is of.
        since_ms: only messages stored at this time or later, epoch ms; None: all.
        until_ms: only messages stored at this time or before, epoch ms; None: all.
        where: only messages for which this SQL expression of Spark is true. Its columns are those
            of the source, and hour (`2026112423`).
    """

    directory: str
    sending: Sending
    topics: Sequence[str] = ()
    into: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        for topic in self.topics:
            check_topic(topic)
        if self.into is not None:
            check_topic(self.into)
            check_target(self.into, "--into")


def restored(messages: DataFrame, options: Options) -> DataFrame:
    """Return archived messages as candidates for sending.

    Args:
        messages: rows of `read_archive`.
        options: the target and the filters.
    """
    if options.topics:
        messages = messages.where(F.col("topic").isin(*options.topics))
    if options.since_ms is not None:
        messages = messages.where(stored_ms() >= options.since_ms)
    if options.until_ms is not None:
        messages = messages.where(stored_ms() <= options.until_ms)
    target = F.col("topic") if options.into is None else F.lit(options.into)
    order = Window.partitionBy(target, "msgId").orderBy("storeTimestamp", *POSITION)
    numbered = matching(messages, options.where).withColumn("copy", F.row_number().over(order))
    return candidates(
        numbered,
        topic=target,
        original=F.col("msgId"),
        properties=plain_properties(),
        is_repeated=F.col("copy") > 1,
    )


def lookup() -> Lookup:
    """Return the recognition of restored messages."""
    return Lookup(write_id=LOOKUP, original=F.col("msgId"))


def tables(spark: SparkSession, options: Options, output: Tables) -> DataFrame:
    """Build the table `messages`: what becomes of each archived message."""
    found = restored(read_archive(spark, options.directory), options)
    targets = tuple(_targets(options))
    copies = stored_copies(spark, options.sending, lookup(), targets)
    return output.add("messages", marked(found, copies, targets, options.sending, lookup()))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Send the archived messages that the topics do not hold, and return what became of each."""
    with output or Tables() as kept:
        targets = _targets(options)
        found = restored(read_archive(spark, options.directory), options)
        return run_copies(spark, found, options.sending, lookup(), kept, targets)


def _targets(options: Options) -> dict[str, str]:
    """Return the topics that receive messages, each with the option that names it.

    Raises:
        UsageError: the archive is empty, lacks a topic, or has a topic that cannot be a target.
    """
    archived = {file.topic for file in Archive(options.directory).files()}
    if not archived:
        raise UsageError(f"{options.directory} contains no archive: see kourou pipeline archive")
    if absent := sorted(set(options.topics) - archived):
        raise UsageError(
            f"--topic {absent[0]}: the archive has no such topic; it has "
            f"{', '.join(sorted(archived))}"
        )
    if options.into is not None:
        return {options.into: "--into"}
    targets = dict.fromkeys(sorted(options.topics or archived), "archived topic")
    for topic in targets:
        check_target(topic, "archived topic")
    return targets
