"""Tests of the pipeline `trace`: steps, spans and latencies from the text of trace messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kourou.model.message import Message
from kourou.pipelines import trace
from kourou.pipelines.report import Table
from kourou.pipelines.selection import Selection
from kourou.protocol.trace_text import (
    ConsumedTrace,
    ConsumingTrace,
    SentTrace,
    TracedOutcome,
    TraceRecord,
    encode_trace,
)

Publish = Callable[[Sequence[Message]], list[str]]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEGUN_MS = 1_760_000_000_000


def sent(msg_id: str, at_ms: int = 0, **changes: Any) -> SentTrace:
    values = {"topic": "orders", "cost_ms": 3, "body_bytes": 5, **changes}
    return SentTrace(at_ms=BEGUN_MS + at_ms, region="r", group="shop", msg_id=msg_id, **values)


def delivered(msg_id: str, request_id: str, at_ms: int, retries: int = 0) -> ConsumingTrace:
    return ConsumingTrace(
        at_ms=BEGUN_MS + at_ms,
        region="r",
        group="billing",
        request_id=request_id,
        msg_id=msg_id,
        retries=retries,
    )


def consumed(msg_id: str, request_id: str, cost_ms: int, **changes: Any) -> ConsumedTrace:
    return ConsumedTrace(request_id=request_id, msg_id=msg_id, cost_ms=cost_ms, **changes)


def body(*records: TraceRecord) -> bytes:
    return "".join(map(encode_trace, records)).encode()


def steps(spark: SparkSession, *bodies: bytes) -> DataFrame:
    rows = [("10.0.0.7:4000", one) for one in bodies]
    return trace.steps(spark.createDataFrame(rows, "bornHost STRING, body BINARY"))


def spans(spark: SparkSession, *records: TraceRecord) -> list[Any]:
    found: list[Any] = (
        trace.spans(steps(spark, body(*records))).orderBy("msgId", "retries").collect()
    )
    return found


def ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000) - BEGUN_MS


def test_a_message_that_is_sent_and_consumed_is_one_span(spark: SparkSession) -> None:
    [span] = spans(
        spark, sent("A"), delivered("A", "q", 10), consumed("A", "q", 7, at_ms=BEGUN_MS + 18)
    )

    assert (span.topic, span.producerGroup, span.consumerGroup) == ("orders", "shop", "billing")
    assert (span.producerClient, span.consumerClient) == ("10.0.0.7", "10.0.0.7")
    assert (ms(span.producedAt), ms(span.acknowledgedAt)) == (0, 3)
    assert (ms(span.deliveredAt), ms(span.consumedAt)) == (10, 18)
    assert (span.sendMs, span.deliveryMs, span.consumeMs, span.totalMs) == (3, 10, 8, 18)
    assert span.isConsumed


def test_each_redelivery_is_a_span_of_its_own(spark: SparkSession) -> None:
    failed, done = spans(
        spark,
        sent("A"),
        delivered("A", "q1", 10),
        consumed("A", "q1", 1, is_success=False, outcome=TracedOutcome.EXCEPTION),
        delivered("A", "q2", 1_010, retries=1),
        consumed("A", "q2", 2),
    )

    assert (failed.isConsumed, failed.outcome, failed.retries) == (False, "exception", 0)
    assert (done.isConsumed, done.retries, done.totalMs) == (True, 1, 1_012)


def test_messages_of_a_batch_have_their_own_spans(spark: SparkSession) -> None:
    first, second = spans(spark, sent("A,B"), delivered("B", "q", 4))

    assert (first.msgId, first.deliveredAt, first.sendMs) == ("A", None, 3)
    assert (second.msgId, second.deliveryMs, second.consumeMs) == ("B", 4, None)


def test_a_delivery_without_a_traced_send_has_no_topic(spark: SparkSession) -> None:
    [span] = spans(spark, delivered("A", "q", 4), consumed("A", "q", 2))

    assert (span.topic, span.producedAt, span.sends) == (None, None, 0)
    assert span.consumeMs == 2


def test_a_failed_send_that_was_repeated_is_acknowledged_once(spark: SparkSession) -> None:
    [span] = spans(spark, sent("A", is_success=False), sent("A", 20))

    assert (span.sends, ms(span.producedAt), ms(span.acknowledgedAt)) == (2, 0, 23)


def test_repeated_and_damaged_trace_messages_do_not_change_the_spans(spark: SparkSession) -> None:
    whole = body(sent("A"))
    found = steps(spark, whole, whole, b"Pub\x01not a number\x02", b"\xff\xfe")

    assert trace.spans(found).count() == 1
    assert found.where("step = 'damaged'").count() == 1


def test_latency_counts_failures_and_no_waiting_time_of_retries(spark: SparkSession) -> None:
    found = trace.spans(
        steps(
            spark,
            body(
                sent("A"),
                delivered("A", "q1", 10),
                consumed("A", "q1", 1, is_success=False),
                delivered("A", "q2", 10_000, retries=1),
                consumed("A", "q2", 5),
                sent("B", is_success=False),
            ),
        )
    )

    rows = {row.step: row for row in trace.latency(found).collect() if row.topic == "orders"}
    assert (rows["send"]["count"], rows["send"].failed) == (2, 1)
    assert (rows["delivery"]["count"], rows["delivery"].maxMs) == (1, 10)
    assert (rows["consume"]["count"], rows["consume"].failed) == (2, 1)
    assert (rows["total"]["count"], rows["total"].p50Ms) == (1, 10_005)


def test_a_real_trace_topic_is_joined_with_the_store_times(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    on_terminal: Callable[[Table], list[str]],
) -> None:
    ids = publish([Message("t-traced", b"%d" % n) for n in range(10)])
    now_ms = round(datetime.now(UTC).timestamp() * 1000) - BEGUN_MS
    records = [sent(one, now_ms, topic="t-traced") for one in ids]
    calls: list[TraceRecord] = [delivered(one, f"q-{one}", now_ms + 9) for one in ids[:8]]
    calls.append(consumed(ids[0], f"q-{ids[0]}", 12_345))
    publish([Message("t-traces", body(*records)), Message("t-traces", body(*calls))])
    selection = Selection(name_server=namesrv, topics=("t-traces",))

    report = trace.run(spark, trace.Options(selection=selection, stored_in=("t-traced",)))

    assert report.metrics == {
        "messages": 10,
        "deliveries": 8,
        "without_delivery": 2,
        "without_send": 0,
        "damaged": 0,
    }
    [latency, slowest] = report.tables
    by_step = {row["step"]: row for row in latency.documents()}
    assert (by_step["delivery"]["count"], by_step["delivery"]["p50_ms"]) == (8, 9)
    assert [row["msg_id"] for row in slowest.documents()] == ids[:1]  # no other call has ended
    for table in report.tables:
        assert max(map(len, on_terminal(table))) <= 80
    assert "2 messages without a traced delivery" in report.notes[0]
