"""Evidence of an audit: functions from messages and a ledger to what they prove. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs
from pyspark.sql.window import Window

from kourou.model import properties as names
from kourou.pipelines import restore
from kourou.pipelines.event_time import born_ms, stored_ms
from kourou.pipelines.selection import POSITION

READ: Final = (*POSITION, "msgId", "properties", "bornTimestamp", "storeTimestamp")
"""The columns of the messages that an audit reads."""

MESSAGE: Final = ["topic", "msgId"]
QUEUE: Final = ["topic", "brokerName", "queueId"]
_ALWAYS_MS: Final = (1 << 63) - 1
_NEVER_MS: Final = 0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The limits of an audit's judgement.

    Attributes:
        since_ms: messages before this time are not judged; None: all.
        until_ms: messages after this time are not judged: they may be in flight.
        settle_ms: the time that entries and messages in flight need to arrive.
        skew_ms: largest difference between the clocks of producers and brokers.
        groups: the groups that must acknowledge the messages.
    """

    since_ms: int | None
    until_ms: int
    settle_ms: int
    skew_ms: int
    groups: Sequence[str] = ()


def copies(messages: DataFrame) -> DataFrame:
    """Return one row for each stored message: its times and marks.

    Args:
        messages: rows with at least `READ`.
    """
    return messages.select(
        *(*POSITION, "msgId"),
        born_ms().alias("bornMs"),
        stored_ms().alias("storedMs"),
        _kind_of_copy(F.col("properties")).alias("copyKind"),
    )


def _kind_of_copy(properties: Column) -> Column:
    """Return the kind of a message that Kourou's commands have sent again; otherwise null."""
    stamp = properties.getItem(names.SPARK_ID)
    return (
        F.when(properties.getItem(names.REDRIVEN_FROM).isNotNull(), "redriven")
        .when(properties.getItem(names.REPLAYED_FROM).isNotNull(), "replayed")
        .when(stamp.startswith(f"{restore.LOOKUP}:"), "restored")
    )


def stored(found: DataFrame) -> DataFrame:
    """Return one row for each unique id in each topic, with all places in the order of storage.

    Args:
        found: the copies.
    """
    place = F.struct("storedMs", "brokerName", "queueId", "queueOffset")
    return found.groupBy(*MESSAGE).agg(
        F.sort_array(F.collect_list(place)).alias("places"),
        F.min("bornMs").alias("bornMs"),
        F.count_if(F.col("copyKind").isNull()).alias("originals"),
        F.sort_array(F.collect_list("copyKind")).alias("copyKinds"),
    )


def with_times(queues: DataFrame, found: DataFrame, terms: Terms) -> DataFrame:
    """Add to each queue `heldFromMs`, the store time from which it holds all messages.

    Args:
        queues: the queues with minOffset and maxOffset.
        found: the copies.
        terms: the read began at `since_ms`, or with the first message.
    """
    first = found.groupBy(*QUEUE).agg(
        F.min("queueOffset").alias("firstRead"), F.min("storedMs").alias("firstReadMs")
    )
    began_later = F.lit(terms.since_ms is not None) & (F.col("firstRead") > F.col("minOffset"))
    held_from_ms = (
        F.when((F.col("maxOffset") == 0) | began_later, _NEVER_MS)
        .when(F.col("minOffset") >= F.col("maxOffset"), _ALWAYS_MS)
        .otherwise(F.coalesce("firstReadMs", F.lit(_NEVER_MS)))
    )
    joined = queues.join(first, QUEUE, "left")
    return joined.withColumn("heldFromMs", held_from_ms).drop("firstRead", "firstReadMs")


def disorder(sends: DataFrame, found: DataFrame) -> DataFrame:
    """Return topic, msgId and `disorder` of the messages that are stored out of order.

    A send that began after the end of another one must be stored behind it. The numbers of the
    ledger decide about before and after, so that no clock matters. Copies that Kourou's commands
    have sent later have no order.

    Args:
        sends: of the ledger.
        found: the stored messages.
    """
    first = F.get("places", F.lit(0))
    placed = (
        sends.where("isStored AND run IS NOT NULL")
        .join(found.where("originals > 0"), MESSAGE)
        .select(
            *(*MESSAGE, "run", "firstSeq", "lastSeq", "shardingKey"),
            first["brokerName"].alias("brokerName"),
            first["queueId"].alias("queueId"),
            first["queueOffset"].alias("queueOffset"),
        )
    )
    both = _overtaken(placed).unionByName(_moved(placed))
    return both.groupBy(*MESSAGE).agg(F.min("disorder").alias("disorder"))


def retried(retries: DataFrame, dead: DataFrame, queues: DataFrame) -> DataFrame:
    """Return for each message the groups that still retry it, and those that gave up.

    Copies for redelivery lie in topics of the group and have the unique id of the message. They are
    no duplicates.

    Args:
        retries: rows of retry topics with at least `READ`, and the group.
        dead: rows of dead-letter topics, likewise.
        queues: the queues of the retry topics, with the committed offsets.
    """
    committed = queues.select(*QUEUE, "committed")
    waiting = retries.join(committed, QUEUE, "left").where(
        F.col("queueOffset") >= F.coalesce(F.col("committed")[F.col("group")], F.lit(0))
    )
    origin = F.col("properties").getItem(names.RETRY_TOPIC)
    own_id = F.col("properties").getItem(names.UNIQ_KEY)
    of_origin = F.col("properties").getItem(names.ORIGIN_MESSAGE_ID)
    shape = (
        origin.alias("topic"),
        F.coalesce(own_id, of_origin, F.col("msgId")).alias("msgId"),
        F.col("group"),
    )
    both = waiting.select(*shape, F.lit(False).alias("isDead")).unionByName(
        dead.select(*shape, F.lit(True).alias("isDead"))
    )
    return both.groupBy(*MESSAGE).agg(
        F.collect_set(F.when(F.col("isDead"), F.col("group"))).alias("deadGroups"),
        F.collect_set(F.when(~F.col("isDead"), F.col("group"))).alias("retryingGroups"),
    )


def position(broker: Column, queue_id: Column, offset: Column) -> Column:
    """Return a position as `kourou message` takes it; null if a part is unknown."""
    return F.concat(broker, F.lit("/"), queue_id.cast("string"), F.lit("@"), offset.cast("string"))


def _overtaken(placed: DataFrame) -> DataFrame:
    """Return the messages that are stored behind one that was sent later, in the same queue."""
    ahead = (
        Window.partitionBy("run", *QUEUE)
        .orderBy("queueOffset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    later = F.max(F.struct("firstSeq", "msgId", "queueOffset")).over(ahead)
    cause = F.concat(
        F.lit("it is stored behind "),
        F.col("later.msgId"),
        F.lit(" at offset "),
        F.col("later.queueOffset").cast("string"),
        F.lit(", which its producer sent later"),
    )
    found = placed.withColumn("later", later).where(F.col("later.firstSeq") > F.col("lastSeq"))
    return found.select(*MESSAGE, cause.alias("disorder"))


def _moved(placed: DataFrame) -> DataFrame:
    """Return the messages whose sharding key had another queue in the send before."""
    by_key = Window.partitionBy("run", "topic", "shardingKey").orderBy("firstSeq")
    before = F.lag(F.struct("brokerName", "queueId", "lastSeq")).over(by_key)
    broker, queue_id = F.col("before.brokerName"), F.col("before.queueId")
    is_elsewhere = (broker != F.col("brokerName")) | (queue_id != F.col("queueId"))
    cause = F.concat(
        F.lit("its key "),
        F.col("shardingKey"),
        F.lit(" moved from queue "),
        F.concat_ws("/", broker, queue_id.cast("string")),
        F.lit(" to "),
        F.concat_ws("/", "brokerName", F.col("queueId").cast("string")),
    )
    keyed = placed.where("shardingKey IS NOT NULL").withColumn("before", before)
    found = keyed.where((F.col("before.lastSeq") < F.col("firstSeq")) & is_elsewhere)
    return found.select(*MESSAGE, cause.alias("disorder"))
