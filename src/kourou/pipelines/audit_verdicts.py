"""Verdicts of an audit: functions from DataFrames of ledger, store and groups to DataFrames. Pure.

The ledger is what producers say they sent, the store what brokers hold, and the committed offsets
what groups have acknowledged. A message is `lost` only on proof: its producer has the broker's
answer, the position lies within what the queue holds, and the read has not found the message.
Whatever else could explain the absence makes it `expired` or `unknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.pipelines.audit_evidence import MESSAGE, Terms, position
from kourou.pipelines.ledger import id_prefix


class Verdict(StrEnum):
    """The fate of one message."""

    LOST = "lost"
    """The broker has acknowledged it, still holds that part of the queue, and does not have it."""
    UNEXPECTED = "unexpected"
    """It is stored, but its producer's complete ledger has not sent it, or was told otherwise."""
    DUPLICATE = "duplicate"
    """It is stored several times under one unique id."""
    DISORDERED = "disordered"
    """It is stored behind a message that its producer sent later, after this one was stored."""
    DELIVERED = "delivered"
    """It is stored, and each of the groups has acknowledged it."""
    STORED = "stored"
    """It is stored, and a group has not acknowledged it, or no group was named."""
    EXPIRED = "expired"
    """Retention has taken it."""
    SCHEDULED = "scheduled"
    """It waits for its delivery time."""
    RECALLED = "recalled"
    """Its producer has cancelled it before its delivery."""
    ROLLED_BACK = "rolled back"
    """Its transaction was rolled back."""
    REFUSED = "refused"
    """The broker has refused it, or it was never sent."""
    UNKNOWN = "unknown"
    """The evidence proves neither that it was stored nor that it was not."""


BAD: Final = (Verdict.LOST, Verdict.UNEXPECTED, Verdict.DUPLICATE, Verdict.DISORDERED)
"""The verdicts that are findings, the worst first."""

HINTS: Final = {
    Verdict.LOST: "send it again from its source; `kourou store check` finds damage of the store",
    Verdict.UNEXPECTED: "look for another program that sends under this id or skips the ledger",
    Verdict.DUPLICATE: "consumers must be idempotent: kourou.Idempotent, or kourou pipeline dedup",
    Verdict.DISORDERED: "await each send of a key before the next; keep the number of queues",
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The tables that an audit compares.

    Attributes:
        sends: of the ledger (`ledger.sends`).
        runs: of the ledger (`ledger.runs`).
        prefixes: of the ledger (`ledger.prefixes`).
        stored: the stored messages.
        disorder: the messages that are stored out of order.
        traced: topic, msgId and tracedMs of each traced send; None without traces.
        consumed: msgId and `tracedGroups`, the groups that consumed it according to traces; None
            without traces.
        retried: the groups that retry messages or gave up; None without groups.
        queues: the queues with minOffset, maxOffset, heldFromMs, readToMs and committed.
    """

    sends: DataFrame
    runs: DataFrame
    prefixes: DataFrame
    stored: DataFrame
    disorder: DataFrame
    traced: DataFrame | None
    consumed: DataFrame | None
    retried: DataFrame | None
    queues: DataFrame


def messages(evidence: Evidence, terms: Terms) -> DataFrame:
    """Return one row with a verdict and its cause for each message that the terms let judge.

    Args:
        evidence: what is known.
        terms: what is judged.
    """
    joined = _joined(evidence)
    begun_ms = F.coalesce("begunMs", F.get("places", F.lit(0))["storedMs"], "tracedMs")
    ended_ms = F.coalesce("endedMs", F.get("places", F.lit(0))["storedMs"], "tracedMs")
    is_judged = ended_ms <= terms.until_ms
    if terms.since_ms is not None:
        is_judged &= begun_ms >= terms.since_ms
    ruled = (
        joined.where(is_judged)
        .withColumn("groups", _group_states(terms.groups))
        .withColumn("ruling", _ruling(terms))
    )
    place = F.get("places", F.lit(0))
    return ruled.select(
        *MESSAGE,
        F.col("ruling.verdict").alias("verdict"),
        F.col("ruling.cause").alias("cause"),
        F.timestamp_millis(begun_ms).alias("sentAt"),
        F.timestamp_millis(place["storedMs"]).alias("storedAt"),
        *("producerGroup", "run", "tries", "shardingKey"),
        F.coalesce(
            position(F.col("brokerName"), F.col("queueId"), F.col("queueOffset")),
            position(place["brokerName"], place["queueId"], place["queueOffset"]),
        ).alias("position"),
        F.transform(
            "places", lambda one: position(one["brokerName"], one["queueId"], one["queueOffset"])
        ).alias("positions"),
        F.col("begunMs").isNotNull().alias("isInLedger"),
        (F.size("places") > 1).alias("isDuplicate"),
        F.when(F.size("places") > 1, _duplicate_cause()).alias("duplicateCause"),
        F.col("disorder").alias("disorderCause"),
        "groups",
    )


def findings(judged: DataFrame) -> DataFrame:
    """Return one row for each finding about each message; a message may have several.

    Args:
        judged: the messages with their verdicts.
    """
    verdict = F.col("verdict")

    def one(kind: Verdict, applies: Column, cause: str) -> Column:
        found = F.struct(
            F.lit(kind.value).alias("finding"),
            F.col(cause).alias("cause"),
            F.lit(HINTS[kind]).alias("hint"),
        )
        return F.when(applies, found)

    every = F.array_compact(
        F.array(
            one(Verdict.LOST, verdict == Verdict.LOST.value, "cause"),
            one(Verdict.UNEXPECTED, verdict == Verdict.UNEXPECTED.value, "cause"),
            one(Verdict.DUPLICATE, F.col("isDuplicate"), "duplicateCause"),
            one(Verdict.DISORDERED, F.col("disorderCause").isNotNull(), "disorderCause"),
        )
    )
    return judged.withColumn("found", F.explode(every)).select(
        "found.finding",
        *(*MESSAGE, "position", "positions", "sentAt", "storedAt", "run"),
        *("found.cause", "found.hint"),
    )


def summary(judged: DataFrame) -> DataFrame:
    """Return the number of messages by topic and verdict."""
    return judged.groupBy("topic", "verdict").agg(
        F.count(F.lit(1)).alias("messages"),
        F.min("sentAt").alias("firstAt"),
        F.max("sentAt").alias("lastAt"),
        F.count_if(~F.col("isInLedger")).alias("withoutEntry"),
    )


def group_progress(judged: DataFrame) -> DataFrame:
    """Return the number of stored messages by topic, group and state."""
    return (
        judged.where(F.size("positions") > 0)
        .select("topic", F.explode("groups").alias("group", "state"))
        .groupBy("topic", "group", "state")
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def _joined(evidence: Evidence) -> DataFrame:
    """Return all evidence about each message that the ledger, the store or the traces have."""
    queues = evidence.queues
    of_topics = queues.groupBy("topic").agg(
        F.max("heldFromMs").alias("topicHeldFromMs"), F.min("heldFromMs").alias("topicExpiredMs")
    )
    runs = evidence.runs.drop("producerGroup").withColumnRenamed("run", "knownRun")
    place = F.get("places", F.lit(0))
    both = evidence.sends.join(evidence.stored, MESSAGE, "full")
    both = _with(both, evidence.traced, MESSAGE, "full", tracedMs="bigint")
    both = _with(both, evidence.consumed, ["msgId"], "left", tracedGroups="array<string>")
    both = _with(
        *(both, evidence.retried, MESSAGE, "left"),
        deadGroups="array<string>",
        retryingGroups="array<string>",
    )
    whole = (
        both.join(evidence.disorder, MESSAGE, "left")
        .withColumn("prefix", id_prefix(F.col("msgId")))
        .join(
            F.broadcast(evidence.prefixes.withColumnRenamed("run", "prefixRun")), "prefix", "left"
        )
        .withColumn("knownRun", F.coalesce("run", "prefixRun"))
        .join(F.broadcast(runs), "knownRun", "left")
        .withColumns(
            {
                # Where the message should be, or else is.
                "atBroker": F.coalesce("brokerName", place["brokerName"]),
                "atQueue": F.coalesce("queueId", place["queueId"]).cast("bigint"),
                "places": F.coalesce("places", F.slice("places", 1, 0), _no_places()),
            }
        )
    )
    keyed = queues.select(
        "topic",
        F.col("brokerName").alias("atBroker"),
        F.col("queueId").cast("bigint").alias("atQueue"),
        *("minOffset", "maxOffset", "heldFromMs", "readToMs", "committed"),
    )
    return whole.join(F.broadcast(keyed), ["topic", "atBroker", "atQueue"], "left").join(
        F.broadcast(of_topics), "topic", "left"
    )


def _with(
    rows: DataFrame, more: DataFrame | None, keys: list[str], how: str, **types: str
) -> DataFrame:
    """Join a table, or add its columns as nulls if there is none: an empty join costs, too."""
    if more is not None:
        return rows.join(more, keys, how)
    return rows.withColumns({name: F.lit(None).cast(kind) for name, kind in types.items()})


def _no_places() -> Column:
    return F.array().cast(
        "array<struct<storedMs:bigint,brokerName:string,queueId:int,queueOffset:bigint>>"
    )


def _group_states(groups: Sequence[str]) -> Column:
    """Return the map from group to state of a stored message."""
    offset = F.get("places", F.lit(0))["queueOffset"]
    entries = []
    for group in groups:
        name = F.lit(group)
        state = (
            F.when(F.array_contains(_groups("deadGroups"), name), "dead letter")
            .when(F.array_contains(_groups("retryingGroups"), name), "retrying")
            .when(offset < F.col("committed")[name], "acknowledged")
            .when(F.array_contains(_groups("tracedGroups"), name), "acknowledged")
            .otherwise("waiting")
        )
        entries += [name, state]
    return F.create_map(*entries).cast("map<string,string>")


def _groups(name: str) -> Column:
    return F.coalesce(F.col(name), F.array().cast("array<string>"))


def _ruling(terms: Terms) -> Column:
    """Return the verdict with its cause; the first rule that applies decides."""
    is_stored, has_entry = F.size("places") > 0, F.col("begunMs").isNotNull()
    is_acknowledged = F.lit(bool(terms.groups)) & F.forall(
        F.map_values("groups"), lambda state: state == "acknowledged"
    )
    waiting = F.array_join(
        F.map_keys(F.map_filter("groups", lambda _, state: state != "acknowledged")), ", "
    )
    return (
        F.when(
            is_stored & _unexpected(terms).isNotNull(),
            _rule(Verdict.UNEXPECTED, _unexpected(terms)),
        )
        .when(F.size("places") > 1, _rule(Verdict.DUPLICATE, _duplicate_cause()))
        .when(
            is_stored & F.col("disorder").isNotNull(), _rule(Verdict.DISORDERED, F.col("disorder"))
        )
        .when(is_stored & is_acknowledged, _rule(Verdict.DELIVERED))
        .when(
            is_stored & F.lit(bool(terms.groups)),
            _rule(Verdict.STORED, F.concat(F.lit("not acknowledged by "), waiting)),
        )
        .when(is_stored, _rule(Verdict.STORED))
        .when(
            ~has_entry, _rule(Verdict.UNKNOWN, F.lit("only a trace has it, and the store does not"))
        )
        .otherwise(_absent(terms))
    )


def _rule(verdict: Verdict, cause: Column | None = None) -> Column:
    reason = F.lit(None).cast("string") if cause is None else cause
    return F.struct(F.lit(verdict.value).alias("verdict"), reason.alias("cause"))


def _unexpected(terms: Terms) -> Column:
    """Return why a stored message should not be stored; null if nothing says so."""
    settle_ms = F.lit(terms.settle_ms)
    is_covered = (
        (F.col("missing") == 0)
        & ((F.col("firstMs") == 0) | (F.col("bornMs") > F.col("firstMs") + settle_ms))
        & (F.col("isClosed") | (F.col("bornMs") < F.col("lastMs") - settle_ms))
    )
    has_entry, is_original = F.col("begunMs").isNotNull(), F.col("originals") > 0
    is_refused = has_entry & ~F.col("isStored") & (F.col("unansweredTries") == 0)
    return (
        F.when(
            ~has_entry & is_covered & is_original,
            "the complete ledger of its producer does not have it",
        )
        .when(
            is_refused & F.col("code").isNotNull(),
            F.concat(F.lit("the broker refused it with code "), F.col("code").cast("string")),
        )
        .when(is_refused, "its producer did not get it off")
        .when(F.col("isRolledBack") & ~F.col("hasCommit"), "its transaction was rolled back")
        .when(F.col("isRecalled"), "it was recalled")
    )


def _duplicate_cause() -> Column:
    times = F.concat(F.size("places").cast("string"), F.lit(" times: "))
    unanswered = F.concat(
        F.lit("its producer made "),
        F.col("tries").cast("string"),
        F.lit(" tries, "),
        F.col("unansweredTries").cast("string"),
        F.lit(" without an answer"),
    )
    repeated = (
        F.when((F.col("tries") > 1) | (F.col("unansweredTries") > 0), unanswered)
        .when(F.col("begunMs").isNotNull(), "its producer sent it once; another program copied it")
        .otherwise("no ledger has it; a producer's retry or a copy by another program")
    )
    is_repeated = F.col("originals") > 1
    return F.concat(times, F.concat_ws("; ", _copies_sent(), F.when(is_repeated, repeated)))


def _copies_sent() -> Column:
    """Return the number of copies of each kind, such as `1 replayed copy`; null without any."""
    kinds = F.col("copyKinds")

    def counted(kind: Column) -> Column:
        count = F.size(F.filter(kinds, lambda one: one == kind))
        noun = F.when(count == 1, " copy").otherwise(" copies")
        return F.concat(count.cast("string"), F.lit(" "), kind, noun)

    texts = F.array_join(F.transform(F.array_distinct(kinds), counted), ", ")
    return F.when(F.size(kinds) > 0, texts)


def _absent(terms: Terms) -> Column:
    """Return the ruling on a message of the ledger that the store does not have."""
    half, scheduled = F.col("isHalf"), F.col("isScheduled")
    is_due = F.col("deliverAtMs") <= terms.until_ms
    is_refused = ~F.col("isStored") & (F.col("unansweredTries") == 0)
    return (
        F.when(
            is_refused,
            _rule(
                Verdict.REFUSED,
                F.coalesce(
                    F.concat(F.lit("response code "), F.col("code").cast("string")),
                    F.concat(F.lit("never sent: "), F.col("reason")),
                    F.lit("never sent"),
                ),
            ),
        )
        .when(F.col("isRecalled"), _rule(Verdict.RECALLED))
        .when(
            F.col("isRecalled").isNotNull(),
            _rule(Verdict.UNKNOWN, F.lit("its recall got no answer")),
        )
        .when(F.col("isOneway"), _rule(Verdict.UNKNOWN, F.lit("one-way sends have no answer")))
        .when(
            ~F.col("isStored"),
            _rule(
                Verdict.UNKNOWN,
                F.concat(F.lit("no answer to its send: "), F.coalesce("reason", F.lit("begun"))),
            ),
        )
        .when(
            scheduled & F.coalesce(is_due, F.lit(False)),
            _rule(Verdict.UNKNOWN, F.lit("its delivery is due; the broker's timer may hold it")),
        )
        .when(scheduled, _rule(Verdict.SCHEDULED))
        .when(half & F.col("hasRollback") & ~F.col("hasCommit"), _rule(Verdict.ROLLED_BACK))
        .when(
            half & ~F.coalesce("isCommitted", F.lit(False)),
            _rule(Verdict.UNKNOWN, F.lit("no broker has confirmed the end of its transaction")),
        )
        .otherwise(_missing(terms))
    )


def _missing(terms: Terms) -> Column:
    """Return the ruling on a message that the broker has acknowledged and the store lacks."""
    at_ms = F.coalesce("transactionEndedMs", "endedMs")
    skew_ms = F.lit(terms.skew_ms)
    offset, has_queue = F.col("queueOffset"), F.col("maxOffset").isNotNull()
    has_offset = has_queue & offset.isNotNull() & F.col("minOffset").isNotNull()
    held_from_ms = F.coalesce("heldFromMs", "topicHeldFromMs")
    expired_ms = F.coalesce("heldFromMs", "topicExpiredMs")
    is_inside = has_offset & (offset < F.col("maxOffset"))
    is_unread = F.col("readToMs").isNotNull() & (at_ms + skew_ms > F.col("readToMs"))
    lost = F.when(
        offset.isNotNull(),
        F.concat(
            F.lit("acknowledged at "),
            position(F.col("brokerName"), F.col("queueId"), offset),
            F.lit(", and the queue holds offsets from "),
            F.col("minOffset").cast("string"),
            F.lit(" to below "),
            F.col("maxOffset").cast("string"),
        ),
    ).otherwise("acknowledged, and the queue holds messages of that time")
    return (
        F.when(has_offset & (offset < F.col("minOffset")), _rule(Verdict.EXPIRED))
        .when(
            F.col("brokerName").isNotNull() & ~has_queue,
            _rule(Verdict.UNKNOWN, F.lit("its queue was not read: no broker has it in the route")),
        )
        .when(
            is_unread & ~is_inside,
            _rule(Verdict.UNKNOWN, F.lit("the log was not read up to its time")),
        )
        .when(has_offset, _rule(Verdict.LOST, lost))
        .when(at_ms + skew_ms < expired_ms, _rule(Verdict.EXPIRED))
        .when(at_ms - skew_ms > held_from_ms, _rule(Verdict.LOST, lost))
        .otherwise(
            _rule(Verdict.UNKNOWN, F.lit("its position is unknown; retention may have taken it"))
        )
    )
