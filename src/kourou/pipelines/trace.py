"""Pipeline `trace`: spans of messages from the trace topic, and the latency of each step.

Clients with traces on write what they do to the trace topic: sends, listener calls, ends of
transactions, recalls. A span is one delivery of a message, with its send; a message that no traced
consumer received has one span without delivery. Traces can be dropped, so an absent step proves
nothing. Each time is by the clock of the client that wrote the trace.

A stream writes the spans of a message when no trace of it was stored for `within_ms`. Later traces
form spans of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import MalformedBodyError, UsageError
from kourou.pipelines.charts import Bars
from kourou.pipelines.directories import StreamDirectory
from kourou.pipelines.event_time import LATENESS_DEFAULT_MS, EventTime, stored_ms
from kourou.pipelines.report import Report, Table, first_rows
from kourou.pipelines.selection import (
    Selection,
    read_message_stream,
    read_messages,
    selected,
)
from kourou.pipelines.streams import LateRows, QuerySink, Streaming, TableRun, late_notes
from kourou.pipelines.tables import Tables
from kourou.protocol.trace_text import (
    ConsumedTrace,
    ConsumingTrace,
    RecallTrace,
    SentTrace,
    TraceRecord,
    TransactionEndTrace,
    decode_traces,
)

COLUMNS: Final = ("bornHost", "body")
STREAM_COLUMNS: Final = (*COLUMNS, "storeTimestamp")

LATENESS_MS: Final = LATENESS_DEFAULT_MS[EventTime.STORE]
"""Store time by which queues of a stream may be apart."""

_STEP_FIELDS: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "step": ("string", pa.string()),
    "client": ("string", pa.string()),
    "group": ("string", pa.string()),
    "topic": ("string", pa.string()),
    "msgId": ("string", pa.string()),
    "requestId": ("string", pa.string()),
    "atMs": ("bigint", pa.int64()),
    "costMs": ("bigint", pa.int64()),
    "isSuccess": ("boolean", pa.bool_()),
    "outcome": ("string", pa.string()),
    "retries": ("int", pa.int32()),
    "tags": ("string", pa.string()),
    "keys": ("string", pa.string()),
    "bodyBytes": ("bigint", pa.int64()),
}
STEPS_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, (kind, _) in _STEP_FIELDS.items())
_ARROW_SCHEMA: Final = pa.schema([(name, kind) for name, (_, kind) in _STEP_FIELDS.items()])
_TIMED_SCHEMA: Final = _ARROW_SCHEMA.append(pa.field("tracedAt", pa.timestamp("us", tz="UTC")))

DAMAGED: Final = "damaged"
"""The step of a trace message that does not parse."""

_NAMES: Final[Mapping[type[TraceRecord], str]] = {
    SentTrace: "sent",
    ConsumingTrace: "delivered",
    ConsumedTrace: "consumed",
    TransactionEndTrace: "transaction",
    RecallTrace: "recalled",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        selection: the trace topic, and the span in which the traces were stored.
        stored_in: topics from which the exact store time of the messages is read; empty: the
            spans have no `storedAt`, only `acknowledgedAt`. Not in streams.
        within_ms: in streams, the time without a trace after which a message's spans are written.
        rows: maximum number of printed rows of each table.
    """

    selection: Selection
    stored_in: tuple[str, ...] = ()
    within_ms: int = 600_000
    rows: int = 20


def steps(traces: DataFrame) -> DataFrame:
    """Return one row for each record of the trace messages; repeated records once.

    A trace writer that got no answer sends its traces again, so records can be repeated.

    Args:
        traces: rows of the trace topic with at least `COLUMNS`.
    """
    return traces.select(*COLUMNS).mapInArrow(_decode_steps, STEPS_SCHEMA).dropDuplicates()


def timed_steps(traces: DataFrame) -> DataFrame:
    """Return one row for each record of the trace messages, with its store time `tracedAt`.

    Args:
        traces: rows of the trace topic with at least `STREAM_COLUMNS`.
    """
    schema = f"{STEPS_SCHEMA}, tracedAt TIMESTAMP"
    return traces.select(*STREAM_COLUMNS).mapInArrow(_decode_steps, schema)


def sessions(timed: DataFrame, within_ms: int) -> DataFrame:
    """Return for each message the array `records` of its steps, repeated records once.

    Args:
        timed: the steps with their store times.
        within_ms: time without a step after which a message is complete.
    """
    fields = [F.col(name) for name in _STEP_FIELDS if name != "msgId"]
    return (
        _by_message(timed)
        .withWatermark("tracedAt", f"{LATENESS_MS} milliseconds")
        .groupBy("messageId", F.session_window("tracedAt", f"{within_ms} milliseconds"))
        .agg(F.collect_set(F.struct(F.col("messageId").alias("msgId"), *fields)).alias("records"))
        .select("records")
    )


def _by_message(timed: DataFrame) -> DataFrame:
    """Repeat the steps of a batch of messages for each of them, with its id in `messageId`."""
    return timed.where(F.col("step") != DAMAGED).withColumn(
        "messageId", F.explode(F.split("msgId", ","))
    )


def spans(decoded: DataFrame) -> DataFrame:
    """Return one row for each delivery of each message, and for each message without one.

    Args:
        decoded: the steps.
    """
    is_sent = F.col("step") == "sent"
    sends = (
        decoded.where(is_sent)
        # Traces of a batch list the ids of its messages in one record.
        .withColumn("msgId", F.explode(F.split("msgId", ",")))
        .groupBy("msgId")
        .agg(
            *(
                F.max_by(name, F.struct("isSuccess", "atMs")).alias(name)
                for name in ("topic", "tags", "keys", "bodyBytes")
            ),
            F.max_by("group", F.struct("isSuccess", "atMs")).alias("producerGroup"),
            F.max_by("client", F.struct("isSuccess", "atMs")).alias("producerClient"),
            F.min("atMs").alias("producedMs"),
            F.min(F.when(F.col("isSuccess"), F.col("atMs") + F.col("costMs"))).alias("ackMs"),
            F.count(F.lit(1)).alias("sends"),
        )
    )
    deliveries = _calls(decoded)
    joined = sends.join(deliveries, "msgId", "full")
    return joined.select(
        *("msgId", "topic", "tags", "keys", "bodyBytes", "producerGroup", "producerClient"),
        F.timestamp_millis("producedMs").alias("producedAt"),
        F.timestamp_millis("ackMs").alias("acknowledgedAt"),
        F.coalesce("sends", F.lit(0)).alias("sends"),
        *("consumerGroup", "consumerClient", "retries", "isConsumed", "outcome"),
        F.timestamp_millis("deliveredMs").alias("deliveredAt"),
        F.timestamp_millis("consumedMs").alias("consumedAt"),
        (F.col("ackMs") - F.col("producedMs")).alias("sendMs"),
        (F.col("deliveredMs") - F.col("producedMs")).alias("deliveryMs"),
        (F.col("consumedMs") - F.col("deliveredMs")).alias("consumeMs"),
        (F.col("consumedMs") - F.col("producedMs")).alias("totalMs"),
    )


def with_store_time(found: DataFrame, messages: DataFrame) -> DataFrame:
    """Add the column `storedAt`, by unique id from the messages themselves.

    Args:
        found: the spans.
        messages: rows with msgId and storeTimestamp.
    """
    stored = messages.groupBy("msgId").agg(F.timestamp_millis(F.min(stored_ms())).alias("storedAt"))
    return found.join(stored, "msgId", "left")


def latency(found: DataFrame) -> DataFrame:
    """Return percentiles of each step by topic, group and client, in ms.

    The steps are `send` (until the broker's answer), `delivery` (from the send to the first
    delivery), `consume` (the listener call) and `total` (from the send to the end of a successful
    call). Redeliveries wait on purpose, so they do not count as delivery.

    Args:
        found: the spans.
    """
    # A message with several deliveries repeats its send in each span.
    sends = found.dropDuplicates(["msgId"]).where("producedAt IS NOT NULL")
    calls = found.where("deliveredAt IS NOT NULL")
    first = calls.where("retries = 0 AND deliveryMs IS NOT NULL")
    done = calls.where("isConsumed AND totalMs IS NOT NULL")
    return (
        _percentiles(sends, "send", "producer", F.col("acknowledgedAt").isNull())
        .unionByName(_percentiles(first, "delivery", "consumer", F.lit(False)))
        .unionByName(_percentiles(calls, "consume", "consumer", ~F.col("isConsumed")))
        .unionByName(_percentiles(done, "total", "consumer", F.lit(False)))
    )


def tables(
    spark: SparkSession, options: Options, output: Tables
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Build the tables `steps`, `spans` and `latency`."""
    decoded = output.add("steps", steps(read_messages(spark, options.selection, COLUMNS)))
    found = spans(decoded)
    if options.stored_in:
        # The messages may have been stored long before the span of the traces, and with any tag.
        selection = Selection(
            name_server=options.selection.name_server,
            topics=options.stored_in,
            options=options.selection.options,
        )
        found = with_store_time(found, read_messages(spark, selection, ("msgId", "storeTimestamp")))
    found = output.add("spans", found)
    return decoded, found, output.add("latency", latency(found))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:
    """Compute the spans; return percentiles of each step and the slowest messages."""
    with output or Tables() as kept:
        kept.check("steps", "spans", "latency")
        return report(*tables(spark, options, kept), options)


def directory(options: Options, streaming: Streaming) -> StreamDirectory:
    """Return the directory of the stream.

    Raises:
        UsageError: store times are to be read from topics; or as `StreamDirectory`.
    """
    if options.stored_in:
        raise UsageError(
            "--stored-in is given, but a stream reads no topic beside the traces: omit it, or "
            "--follow and --new"
        )
    definition = {
        "pipeline": "trace",
        **selected(options.selection),
        "--within": f"{options.within_ms} ms",
    }
    return StreamDirectory(streaming.directory, definition, ("steps", "spans"))


def check(options: Options, streaming: Streaming) -> None:
    """Refuse before Spark starts what `stream` would refuse; raises as `stream`."""
    directory(options, streaming).check(overwrite=streaming.overwrite)


def queries(
    spark: SparkSession,
    options: Options,
    sink: QuerySink,
    write: Callable[[DataFrame, int], None] = lambda *_: None,
) -> None:
    """Add the queries of the tables `steps` and `spans`.

    Args:
        spark: the session.
        options: the trace topic and the time.
        sink: receives the queries.
        write: writes the sessions of a batch as spans.
    """
    traces = read_message_stream(spark, options.selection, STREAM_COLUMNS, skew_ms=LATENESS_MS)
    timed = timed_steps(traces)

    def late(batch: DataFrame, watermark_ms: int) -> int:
        last = F.unix_millis("tracedAt") + options.within_ms
        return int(_by_message(timed_steps(batch)).where(last <= watermark_ms).count())

    sink.append("steps", timed.drop("tracedAt"))
    sink.each_batch(
        "spans",
        sessions(timed, options.within_ms),
        write,
        LateRows(selection=options.selection, columns=STREAM_COLUMNS, count=late),
    )


def stream(spark: SparkSession, options: Options, streaming: Streaming) -> Report:
    """Append the steps, and the spans that are complete; return percentiles and slowest messages.

    Raises:
        UsageError: as `directory`, and as `StreamDirectory.held`.
        KourouError: the stream failed.
    """
    with TableRun(spark, streaming, directory(options, streaming)) as run_, Tables() as kept:

        def write(batch: DataFrame, number: int) -> None:
            # The plan of the spans reads the records several times.
            records = batch.select(F.explode("records").alias("one")).select("one.*").persist()
            try:
                run_.replace_batch("spans", spans(records), number)
            finally:
                records.unpersist()

        queries(spark, options, run_, write)
        counts = run_.wait()
        empty = spans(spark.createDataFrame([], STEPS_SCHEMA))
        found = kept.cache(run_.table("spans", empty.schema))
        result = report(run_.table("steps"), found, latency(found), options)
        still_open = run_.open_rows()
    notes = [*result.notes, *late_notes(counts)]
    if still_open:
        notes.append(
            f"messages still open: {still_open:,}; their spans are written when no trace of them "
            f"was stored for {(options.within_ms + LATENESS_MS) / 1000:g} s"
        )
    return replace(result, notes=notes, stream={**counts, "open": still_open})


def report(decoded: DataFrame, found: DataFrame, measured: DataFrame, options: Options) -> Report:
    """Return percentiles of each step and the slowest messages.

    Args:
        decoded: the steps.
        found: the spans.
        measured: the latencies.
        options: the number of rows.
    """
    by_step = first_rows(
        "latency",
        measured,
        measured.columns,
        (F.desc("count"), "step", "topic", "group", "client"),
        options.rows,
    )
    slowest = first_rows(
        "slowest",
        found.where("totalMs IS NOT NULL"),
        (
            *("msgId", "topic", "consumerGroup", "retries", "producedAt"),
            *("sendMs", "deliveryMs", "consumeMs", "totalMs"),
        ),
        (F.desc("totalMs"), "msgId"),
        options.rows,
    )
    counts = found.agg(
        F.count_distinct("msgId").alias("messages"),
        F.count_if(F.col("deliveredAt").isNotNull()).alias("deliveries"),
        F.count_if(F.col("deliveredAt").isNull()).alias("without_delivery"),
        F.count_if(F.col("producedAt").isNull()).alias("without_send"),
    ).collect()[0]
    damaged = decoded.where(F.col("step") == DAMAGED).count()
    notes = []
    if counts.without_delivery or counts.without_send:
        notes.append(
            f"{counts.without_delivery:,} messages without a traced delivery, "
            f"{counts.without_send:,} deliveries without a traced send: their clients do not "
            "trace, or the traces were dropped"
        )
    if damaged:
        notes.append(f"{damaged:,} trace messages do not parse and are left out")
    return Report(
        tables=(by_step, slowest),
        metrics={**counts.asDict(), "damaged": damaged},
        notes=notes,
        charts=(_chart(by_step),),
    )


def _decode_steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode the records of trace messages in a worker: columns `COLUMNS` or `STREAM_COLUMNS`."""
    for batch in batches:
        rows: list[dict[str, object]] = []
        is_timed = batch.num_columns > len(COLUMNS)
        hosts, bodies, *more = (column.to_pylist() for column in batch.columns)
        times = more[0] if is_timed else [None] * len(hosts)
        for host, body, at in zip(hosts, bodies, times, strict=True):
            client = (host or "").rpartition(":")[0]
            try:
                rows += [
                    {**_step(record, client), "tracedAt": at}
                    for record in decode_traces(body or b"")
                ]
            except MalformedBodyError:
                rows.append({"step": DAMAGED, "client": client, "tracedAt": at})
        schema = _TIMED_SCHEMA if is_timed else _ARROW_SCHEMA
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _step(record: TraceRecord, client: str) -> dict[str, object]:
    """Return the row of one record; attributes that its kind does not have are null."""
    outcome = getattr(record, "outcome", None)
    return {
        "step": _NAMES[type(record)],
        "client": client,
        "group": record.group,
        "topic": getattr(record, "topic", None),
        "msgId": record.msg_id,
        "requestId": getattr(record, "request_id", None),
        "atMs": record.at_ms,
        "costMs": getattr(record, "cost_ms", None),
        "isSuccess": getattr(record, "is_success", None),
        "outcome": getattr(record, "state", None) if outcome is None else outcome.name.lower(),
        "retries": getattr(record, "retries", None),
        "tags": getattr(record, "tags", None),
        "keys": getattr(record, "keys", None),
        "bodyBytes": getattr(record, "body_bytes", None),
    }


def _calls(decoded: DataFrame) -> DataFrame:
    """Return the listener calls: the records before and after each call, joined."""
    before = decoded.where(F.col("step") == "delivered").select(
        *("msgId", "requestId", "retries"),
        F.col("group").alias("consumerGroup"),
        F.col("client").alias("consumerClient"),
        F.col("atMs").alias("beganMs"),
    )
    after = decoded.where(F.col("step") == "consumed").select(
        *("msgId", "requestId", "outcome", "costMs"),
        F.col("isSuccess").alias("isConsumed"),
        F.col("group").alias("groupAfter"),
        F.col("client").alias("clientAfter"),
        F.col("atMs").alias("endedMs"),
    )
    ended_ms = F.coalesce("endedMs", F.col("beganMs") + F.col("costMs"))
    return before.join(after, ["msgId", "requestId"], "full").select(
        "msgId",
        F.coalesce("consumerGroup", "groupAfter").alias("consumerGroup"),
        F.coalesce("consumerClient", "clientAfter").alias("consumerClient"),
        F.coalesce("retries", F.lit(0)).alias("retries"),
        F.coalesce("beganMs", F.col("endedMs") - F.col("costMs")).alias("deliveredMs"),
        ended_ms.alias("consumedMs"),
        *("isConsumed", "outcome"),
    )


def _percentiles(found: DataFrame, step: str, side: str, is_failed: Column) -> DataFrame:
    value = F.col(f"{step}Ms")
    return found.groupBy(
        F.lit(step).alias("step"),
        "topic",
        F.col(f"{side}Group").alias("group"),
        F.col(f"{side}Client").alias("client"),
    ).agg(
        F.count(F.lit(1)).alias("count"),
        F.count_if(is_failed).alias("failed"),
        *(F.percentile_approx(value, share / 100).alias(f"p{share}Ms") for share in (50, 95, 99)),
        F.max(value).alias("maxMs"),
    )


def _chart(by_step: Table) -> Bars:
    bars = {
        f"{row['step']} {row['topic']} {row['group']} {row['client']}": float(str(row["p99_ms"]))
        for row in by_step.documents()
        if row["p99_ms"] is not None
    }
    longest = sorted(bars.items(), key=lambda item: -item[1])
    return Bars(
        title="Latency p99",
        unit="milliseconds",
        bars=dict(longest),
        more=by_step.total - len(by_step.rows),
    )
