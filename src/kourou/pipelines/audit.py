"""Pipeline `audit`: loss, duplication and disorder of messages, each named.

It compares what producers say they sent (a ledger that `kourou.SendLedger` wrote, or traces), what
the store holds, and what consumer groups have acknowledged. Traces alone prove no loss, because
clients drop traces that they cannot send.

An offset that a group has committed acknowledges all messages below it. That does not tell whether
a listener saw them: a filter, a reset of offsets, or a start at the end of the queue skips messages
as well. A failed delivery is acknowledged too, and its copy waits in the group's retry topic; such
messages are `retrying`, and `dead letter` in the end. A copy that waits for the delay of its retry
is in no queue yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.client.config import AdminConfig
from kourou.errors import UsageError
from kourou.model.topic import check_group
from kourou.pipelines import audit_evidence, audit_verdicts, ledger, trace
from kourou.pipelines.audit_evidence import MESSAGE, QUEUE, READ, Terms
from kourou.pipelines.audit_facts import Facts, sample
from kourou.pipelines.audit_verdicts import BAD, HINTS, Evidence, Verdict
from kourou.pipelines.charts import Bars
from kourou.pipelines.event_time import AHEAD_MAX_MS
from kourou.pipelines.report import Report, Table, first_rows
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.tables import Tables
from kourou.spark.schema import COLUMNS, STORE_COLUMNS, ddl
from kourou.store.paths import COMMITLOG

SETTLE_MS: Final = 60_000
"""Sends end within seconds, and their entries follow within a second."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        selection: the topics, and the span in which the judged messages were sent, by the
            producers' clocks. Tags cannot be selected.
        ledger: topic or directory of the ledger; None: there is none.
        trace_topic: topic of the traces; None: they are not read. One of both is needed.
        groups: the consumer groups that must acknowledge the messages.
        store_path: read this store directory instead of asking brokers.
        broker_name: the broker of `store_path`.
        until_ms: the end of the span, at which the settling time begins.
        settle_ms: messages sent within this time before the end are not judged.
        skew_ms: largest difference between the clocks of producers and brokers.
        config: options of the client that asks for queues and groups.
        rows: maximum number of printed rows of each table.
    """

    selection: Selection
    ledger: str | None = None
    trace_topic: str | None = None
    groups: tuple[str, ...] = ()
    store_path: str | None = None
    broker_name: str | None = None
    until_ms: int
    settle_ms: int = SETTLE_MS
    skew_ms: int = AHEAD_MAX_MS
    config: AdminConfig = field(default_factory=AdminConfig)
    rows: int = 20

    def __post_init__(self) -> None:
        if self.ledger is None and self.trace_topic is None:
            raise UsageError(
                "there is nothing to compare the store with: name a ledger (--ledger), or read the "
                "traces (--traces)"
            )
        if self.selection.tags != "*":
            raise UsageError("an audit reads whole topics: tags cannot be selected")
        for group in self.groups:
            check_group(group)
        if self.store_path is None:
            if self.broker_name is not None:
                raise UsageError("--broker-name is given without --store: it names that broker")
            return
        if self.broker_name is None:
            raise UsageError("--store needs --broker-name: a store does not contain its broker's")
        if self.groups:
            raise UsageError("--group needs a broker: offsets of groups are not read from --store")

    @property
    def terms(self) -> Terms:
        """The limits of the judgement."""
        return Terms(
            since_ms=self.selection.since_ms,
            until_ms=self.until_ms - self.settle_ms,
            settle_ms=self.settle_ms,
            skew_ms=self.skew_ms,
            groups=self.groups,
        )


def tables(
    spark: SparkSession, options: Options, output: Tables
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame]:
    """Build the tables `messages`, `findings`, `summary` and `groups`, without asking brokers."""
    said = _Said.read(spark, options)
    found = audit_evidence.copies(_stored_messages(spark, options))
    return _tables(spark, options, output, said, found, Facts.none())


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Judge the messages; return the findings, the worst first, and counts by verdict."""
    with output or Tables() as kept:
        kept.check("messages", "findings", "summary", "groups")
        # The order matters: what the ledger has when it is read is in the store when that is read.
        said = _Said.read(spark, options).cached(kept)
        ledger_state = _ledger_state(said)
        found = kept.cache(audit_evidence.copies(_stored_messages(spark, options)))
        copies = found.count()
        facts = Facts.none()
        if options.store_path is None:
            topics, name_server = options.selection.topics, options.selection.name_server
            facts = asyncio.run(sample(name_server, topics, options.groups, options.config))
        _, bad, totals, groups = _tables(spark, options, kept, said, found, facts)
        summary = _whole("summary", totals, "topic", "verdict")
        shown = [_findings(bad, options.rows), summary]
        if options.groups:
            shown.append(_whole("groups", groups, "topic", "group", "state"))
    by_verdict: Counter[str] = Counter()
    without_entry = 0
    for row in summary.documents():
        by_verdict[str(row["verdict"])] += int(str(row["messages"]))
        without_entry += int(str(row["without_entry"]))
    counted = (*BAD, Verdict.UNKNOWN)
    return Report(
        tables=shown,
        metrics={
            "stored_copies": copies,
            "judged": by_verdict.total(),
            **{verdict.value: by_verdict[verdict.value] for verdict in counted},
        },
        notes=[*_hints(shown[0]), *_notes(options, ledger_state, without_entry)],
        charts=(
            Bars(
                title="Messages by verdict",
                unit="messages",
                bars={
                    one.value: float(by_verdict[one.value])
                    for one in Verdict
                    if by_verdict[one.value]
                },
            ),
        ),
    )


@dataclass(frozen=True)
class _Said:
    """Statements of producers: the entries of the ledger, and spans of traces."""

    entries: DataFrame
    spans: DataFrame | None

    @staticmethod
    def read(spark: SparkSession, options: Options) -> _Said:
        chosen, spans = _since_earlier(options), None
        entries = (
            spark.createDataFrame([], ledger.ENTRY_DDL)
            if options.ledger is None
            else ledger.read_ledger(spark, options.ledger, chosen)
        )
        if options.trace_topic is not None:
            chosen = replace(chosen, topics=(options.trace_topic,))
            spans = trace.spans(trace.steps(read_messages(spark, chosen, trace.COLUMNS)))
        return _Said(entries, spans)

    def cached(self, output: Tables) -> _Said:
        """Return the same; each table is read once, when it is first used."""
        spans = None if self.spans is None else output.cache(self.spans)
        return _Said(output.cache(self.entries), spans)


def _ledger_state(said: _Said) -> Any:  # noqa: ANN401 - a Row
    """Read the ledger and the traces now, and return how complete the ledger is."""
    if said.spans is not None:
        said.spans.count()
    runs = ledger.runs(said.entries).agg(
        F.count(F.lit(1)).alias("runs"),
        F.count_if(F.col("missing") > 0).alias("gaps"),
        F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"),
        F.count_if(~F.col("isClosed")).alias("open"),
    )
    damaged = said.entries.agg(F.count_if(F.col("kind").isNull()).alias("damaged"))
    return runs.crossJoin(damaged).collect()[0]


def _since_earlier(options: Options) -> Selection:
    """Return the selection of what was stored in the span by any clock, up to now.

    Entries, redeliveries and scheduled messages are stored after the send.
    """
    selection = options.selection
    since_ms = None
    if selection.since_ms is not None:
        since_ms = max(0, selection.since_ms - options.skew_ms)
    # What cannot be decoded is missing, and the audit says so; retention is checked afterwards.
    more = {**selection.options, "failOnDataLoss": "false"}
    return replace(selection, since_ms=since_ms, until_ms=None, options=more)


def _stored_messages(spark: SparkSession, options: Options) -> DataFrame:
    if options.store_path is None:
        return read_messages(spark, _since_earlier(options), READ)
    columns = COLUMNS | STORE_COLUMNS
    # The whole log is read, because its ends tell what retention took.
    rows = (
        spark.read.format("rocketmq")
        .schema(ddl({name: columns[name] for name in (*READ, "corrupt")}))
        .option("storePath", options.store_path)
        .option("brokerName", options.broker_name)
        .load()
    )
    return rows.where("corrupt IS NULL").select(*READ)


def _tables(
    spark: SparkSession,
    options: Options,
    output: Tables,
    said: _Said,
    found: DataFrame,
    facts: Facts,
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame]:
    terms, topics, spans = options.terms, list(options.selection.topics), said.spans
    sends = ledger.sends(said.entries.where(F.col("topic").isin(topics)))
    if options.store_path is None:
        queues = spark.createDataFrame(facts.queues).withColumn(
            "readToMs", F.lit(None).cast("bigint")
        )
        queues = audit_evidence.with_times(queues, found, _read_terms(options))
    else:
        is_whole = _is_whole(options.store_path)
        queues = store_queues(sends, found, str(options.broker_name), is_whole=is_whole)
        found = found.where(F.col("topic").isin(topics))
    stored = audit_evidence.stored(found)
    evidence = Evidence(
        sends=sends,
        runs=ledger.runs(said.entries),
        prefixes=ledger.prefixes(said.entries),
        stored=stored,
        disorder=audit_evidence.disorder(sends, stored),
        traced=None if spans is None else _traced(spans.where(F.col("topic").isin(topics))),
        consumed=None if spans is None else _consumed(spans),
        retried=_retried(spark, options, facts, queues),
        queues=queues.where(F.col("topic").isin(topics)),
    )
    judged = output.add("messages", audit_verdicts.messages(evidence, terms))
    return (
        judged,
        output.add("findings", audit_verdicts.findings(judged)),
        output.add("summary", audit_verdicts.summary(judged)),
        output.add("groups", audit_verdicts.group_progress(judged)),
    )


def _read_terms(options: Options) -> Terms:
    return replace(options.terms, since_ms=_since_earlier(options).since_ms)


def _is_whole(store_path: str) -> bool:
    """Return whether retention has taken nothing: the log begins at position 0."""
    names = sorted(file.name for file in (Path(store_path).expanduser() / COMMITLOG).glob("[0-9]*"))
    return bool(names) and int(names[0]) == 0


def store_queues(
    sends: DataFrame, found: DataFrame, broker_name: str, *, is_whole: bool
) -> DataFrame:
    """Return the queues of a store directory, as `Evidence.queues`.

    A store does not record the offsets that retention took: the first record of the log tells. The
    last one tells up to when it was read. Queues of the ledger without a record are included.

    Args:
        sends: of the ledger.
        found: all copies in the log, of all topics.
        broker_name: the broker of the store.
        is_whole: retention has taken nothing, so each queue begins at offset 0.
    """
    log = found.agg(F.min("storedMs").alias("heldFromMs"), F.max("storedMs").alias("readToMs"))
    named = (
        sends.where(F.col("brokerName") == broker_name)
        .select(*QUEUE)
        .withColumn("queueId", F.col("queueId").cast("bigint"))
        .distinct()
    )
    present = found.groupBy(
        "topic", "brokerName", F.col("queueId").cast("bigint").alias("queueId")
    ).agg(F.min("queueOffset").alias("minOffset"), (F.max("queueOffset") + 1).alias("maxOffset"))
    return (
        named.join(present, QUEUE, "full")
        .withColumn("minOffset", F.lit(0) if is_whole else F.col("minOffset"))
        .withColumn("maxOffset", F.coalesce("maxOffset", F.lit(0)))
        .withColumn("committed", F.lit(None).cast("map<string,bigint>"))
        .crossJoin(F.broadcast(log))
    )


def _retried(
    spark: SparkSession, options: Options, facts: Facts, queues: DataFrame
) -> DataFrame | None:
    if not (facts.retry_topics or facts.dead_letter_topics):
        return None
    return audit_evidence.retried(
        _of_groups(spark, options, facts.retry_topics),
        _of_groups(spark, options, facts.dead_letter_topics),
        queues,
    )


def _of_groups(spark: SparkSession, options: Options, topics: Mapping[str, str]) -> DataFrame:
    """Return the messages of the groups' retry or dead-letter topics, with the group."""
    empty = spark.createDataFrame(
        [], f"{ddl({name: COLUMNS[name] for name in READ})}, group STRING"
    )
    chosen = _since_earlier(options)
    return reduce(
        DataFrame.unionByName,
        (
            read_messages(spark, replace(chosen, topics=(topic,)), READ).withColumn(
                "group", F.lit(group)
            )
            for group, topic in topics.items()
        ),
        empty,
    )


def _traced(spans: DataFrame) -> DataFrame:
    """Return the traced sends."""
    sent = spans.where("producedAt IS NOT NULL")
    return sent.groupBy(*MESSAGE).agg(F.min(F.unix_millis("producedAt")).alias("tracedMs"))


def _consumed(spans: DataFrame) -> DataFrame:
    done = spans.where("isConsumed")
    return done.groupBy("msgId").agg(F.collect_set("consumerGroup").alias("tracedGroups"))


def _findings(bad: DataFrame, limit: int) -> Table:
    rank = reduce(
        lambda rest, item: F.when(F.col("finding") == item[1].value, item[0]).otherwise(rest),
        enumerate(BAD),
        F.lit(len(BAD)),
    )
    columns = ("finding", "topic", "msgId", "position", "sentAt", "cause")
    return first_rows("findings", bad, columns, (rank, "sentAt", "msgId"), limit)


def _hints(findings: Table) -> list[str]:
    """Return the remedy of each kind of finding that is shown."""
    kinds = {row[0] for row in findings.rows}
    return [f"{one.value}: {HINTS[one]}" for one in BAD if one.value in kinds]


def _whole(name: str, frame: DataFrame, *order: str) -> Table:
    """Return a table that is small: it has a row for each topic, group and verdict."""
    rows = [tuple(row) for row in frame.orderBy(*order).collect()]
    return Table(name, frame.columns, rows, len(rows))


def _notes(options: Options, state: Any, without_entry: int) -> list[str]:  # noqa: ANN401 - a Row
    """Return what the verdicts lack."""
    notes = []
    if options.ledger is None:
        notes.append("traces alone prove no loss: messages that the store lacks are unknown")
    elif not state.runs:
        notes.append(f"the ledger {options.ledger} has no numbered run: it may be incomplete")
    if state.gaps:
        notes.append(
            f"the ledger lacks {state.missing:,} entries of {state.gaps:,} of {state.runs:,} runs: "
            "their other messages cannot be unexpected"
        )
    if state.open:
        notes.append(
            f"{state.open:,} of {state.runs:,} runs have no end: the producers run, or were "
            "killed and lost the entries since their last flush"
        )
    if state.damaged:
        notes.append("lines of the ledger do not parse and are left out")
    if without_entry and options.ledger is not None:
        notes.append(f"{without_entry:,} messages have no entry in the ledger")
    if not options.groups:
        notes.append("no group is named (--group): acknowledgements are not judged")
    return notes
