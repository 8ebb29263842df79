"""Tables of a send ledger: its entries, the runs that wrote them, and the sends by message.

Entries come from a topic, or from a directory with files of `LedgerFiles` or `ParquetLedger`.
Parquet of another origin needs the columns msgId, topic, outcome and begunMs; without run and seq
nothing is known about its completeness, so it never proves a message unexpected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.client.sending.ledger_entry import EntryKind, EntryOutcome, decode_entries
from kourou.errors import UsageError
from kourou.pipelines.ledger_parquet import ENTRY_SCHEMA, entry_batch
from kourou.pipelines.selection import Selection, read_messages

_SPARK_TYPES: Final = {"string": "STRING", "int64": "BIGINT", "bool": "BOOLEAN"}
ENTRY_DDL: Final = ", ".join(f"`{one.name}` {_SPARK_TYPES[str(one.type)]}" for one in ENTRY_SCHEMA)

_SEND: Final = EntryKind.SEND.value
_CLOSED: Final = EntryKind.CLOSED.value
_TRANSACTION_END: Final = EntryKind.TRANSACTION_END.value
_RECALL: Final = EntryKind.RECALL.value
_STORED: Final = EntryOutcome.STORED.value
_REFUSED: Final = EntryOutcome.REFUSED.value

_NEEDED: Final = ("msgId", "topic", "outcome", "begunMs")
_ID_TAIL: Final = 12
"""Characters of a unique id that differ between the messages of one producer: time and counter."""

_RANKS: Final = {
    EntryOutcome.BEGUN.value: 0,
    EntryOutcome.UNKNOWN.value: 1,
    EntryOutcome.REFUSED.value: 2,
    EntryOutcome.STORED.value: 3,
}
"""A try has at most two entries; the one with the outcome replaces that with `begun`."""


def id_prefix(msg_id: Column) -> Column:
    """Return the part of unique ids that is equal for all messages of one producer.

    A producer has a second one after the end of a month or a step of its clock.
    """
    return F.substr(msg_id, F.lit(1), F.length(msg_id) - _ID_TAIL)


def is_directory(ledger: str) -> bool:
    """Return whether the name of a ledger is that of a directory, not of a topic."""
    return "/" in ledger or "\\" in ledger or Path(ledger).is_dir()


def read_ledger(spark: SparkSession, ledger: str, selection: Selection) -> DataFrame:
    """Return the entries of a ledger, with the columns of `ENTRY_DDL`; a repeated entry once.

    Args:
        spark: the session.
        ledger: a topic, or a directory that each machine of the job sees.
        selection: name servers, and the span of store times of the ledger's messages; the topics
            are replaced by the ledger.

    Raises:
        UsageError: the directory has no ledger, or its Parquet lacks a column.
    """
    if not is_directory(ledger):
        chosen = Selection(
            name_server=selection.name_server,
            topics=(ledger,),
            since_ms=selection.since_ms,
            options=selection.options,
        )
        return decoded(read_messages(spark, chosen, ("body",))).dropDuplicates()
    frames = list(_of_directory(spark, ledger))
    if not frames:
        raise UsageError(f"{ledger} has no ledger: it has neither .jsonl nor .parquet files")
    found = frames[0]
    for other in frames[1:]:
        found = found.unionByName(other)
    return found.dropDuplicates()


def decoded(bodies: DataFrame) -> DataFrame:
    """Return the entries of bodies of JSON lines; lines that do not parse have no kind.

    Args:
        bodies: rows with the binary column `body`.
    """
    return bodies.select("body").mapInArrow(_decode, ENTRY_DDL)


def runs(entries: DataFrame) -> DataFrame:
    """Return one row for each run, with what its numbers say about missing entries.

    `missing` counts the numbers between the first and the last that have no entry. `coveredMs` is
    the time up to which a message of the run must have an entry: without end if the run is closed,
    else that of the last entry. `firstMs` is the time of the first entry that was read.

    Args:
        entries: of all kinds.
    """
    numbered = entries.where("run IS NOT NULL AND seq IS NOT NULL")
    return numbered.groupBy("run").agg(
        F.max("group").alias("producerGroup"),
        (F.max("seq") - F.min("seq") + 1 - F.count_distinct("seq")).alias("missing"),
        F.when(F.min("seq") == 1, F.lit(0)).otherwise(F.min("begunMs")).alias("firstMs"),
        F.max(F.when(F.col("kind") != _CLOSED, F.col("begunMs"))).alias("lastMs"),
        F.max(F.col("kind") == _CLOSED).alias("isClosed"),
    )


def prefixes(entries: DataFrame) -> DataFrame:
    """Return the prefixes of unique ids that are known to be of a run."""
    sends = entries.where((F.col("kind") == _SEND) & F.col("run").isNotNull())
    return sends.groupBy(id_prefix(F.col("msgId")).alias("prefix")).agg(F.min("run").alias("run"))


def sends(entries: DataFrame) -> DataFrame:
    """Return one row for each message that the ledger has: the outcome of all its tries.

    Args:
        entries: of all kinds.
    """
    outcome = F.col("outcome")
    tries = (
        entries.where(F.col("kind") == _SEND)
        .withColumn("rank", _rank(outcome))
        .groupBy("topic", "msgId", "run", "seq")
        .agg(F.max_by(F.struct(*_TRY), "rank").alias("try"))
        .select("topic", "msgId", "run", "seq", "try.*")
    )
    is_stored = outcome == _STORED
    is_refused = outcome == _REFUSED

    def of_stored(name: str) -> Column:
        return F.max_by(name, F.when(is_stored, F.coalesce("seq", F.lit(0)))).alias(name)

    by_message = tries.groupBy("topic", "msgId").agg(
        F.min("run").alias("run"),
        F.max("group").alias("producerGroup"),
        F.min("seq").alias("firstSeq"),
        F.count(F.lit(1)).alias("tries"),
        F.count_if(~is_stored & ~is_refused).alias("unansweredTries"),
        F.max(is_stored).alias("isStored"),
        F.min("begunMs").alias("begunMs"),
        F.max(F.coalesce("endedMs", "begunMs")).alias("endedMs"),
        of_stored("brokerName"),
        of_stored("queueId"),
        of_stored("queueOffset"),
        of_stored("lastSeq"),
        F.max_by("code", "seq").alias("code"),
        F.max_by("reason", "seq").alias("reason"),
        F.max("shardingKey").alias("shardingKey"),
        *(
            F.coalesce(F.max(name), F.lit(False)).alias(name)
            for name in ("isHalf", "isScheduled", "isOneway")
        ),
        F.max("deliverAtMs").alias("deliverAtMs"),
    )
    keys = ["topic", "msgId"]
    return by_message.join(_ends(entries), keys, "left").join(_recalls(entries), keys, "left")


_TRY: Final = (
    *("group", "outcome", "begunMs", "endedMs", "brokerName", "queueId", "queueOffset", "lastSeq"),
    *("code", "reason", "shardingKey", "isHalf", "isScheduled", "isOneway", "deliverAtMs"),
)


def _ends(entries: DataFrame) -> DataFrame:
    """Return the ends of transactions by message: whether they were sent, and confirmed."""
    is_commit, is_rollback = F.col("state") == "COMMIT", F.col("state") == "ROLLBACK"
    is_confirmed = F.col("outcome") == _STORED
    return (
        entries.where(F.col("kind") == _TRANSACTION_END)
        .groupBy("topic", "msgId")
        .agg(
            F.max(is_commit).alias("hasCommit"),
            F.max(is_rollback).alias("hasRollback"),
            F.max(is_commit & is_confirmed).alias("isCommitted"),
            F.max(is_rollback & is_confirmed).alias("isRolledBack"),
            F.max("endedMs").alias("transactionEndedMs"),
        )
    )


def _recalls(entries: DataFrame) -> DataFrame:
    return (
        entries.where(F.col("kind") == _RECALL)
        .where(F.col("outcome") != _REFUSED)
        .groupBy("topic", "msgId")
        .agg(F.max(F.col("outcome") == _STORED).alias("isRecalled"))
    )


def _rank(outcome: Column) -> Column:
    rank = F.lit(1)
    for name, value in _RANKS.items():
        rank = F.when(outcome == name, value).otherwise(rank)
    return rank


def _of_directory(spark: SparkSession, directory: str) -> Iterator[DataFrame]:
    names = [file.name for file in Path(directory).glob("*")] if "://" not in directory else []
    if any(name.endswith(".jsonl") for name in names):
        lines = spark.read.option("pathGlobFilter", "*.jsonl").text(directory)
        yield decoded(lines.select(F.col("value").cast("binary").alias("body")))
    if "://" in directory or any(name.endswith(".parquet") for name in names):
        rows = spark.read.option("pathGlobFilter", "*.parquet").parquet(directory)
        if missing := [name for name in _NEEDED if name not in rows.columns]:
            raise UsageError(
                f"{directory} is no ledger: its Parquet lacks the column {missing[0]}; it needs "
                f"{', '.join(_NEEDED)}"
            )
        if "kind" not in rows.columns:
            rows = rows.withColumn("kind", F.lit(EntryKind.SEND.value))
        yield rows.select(
            *(
                (F.col(one.name) if one.name in rows.columns else F.lit(None))
                .cast(_SPARK_TYPES[str(one.type)])
                .alias(one.name)
                for one in ENTRY_SCHEMA
            )
        )


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode the lines, in a worker."""
    damaged = pa.RecordBatch.from_pylist([{}], schema=ENTRY_SCHEMA)
    for batch in batches:
        for body in batch.column(0).to_pylist():
            found = list(decode_entries(body or b""))
            yield entry_batch(one for one in found if one is not None)
            if None in found:
                yield damaged
