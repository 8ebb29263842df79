"""Tests of the pipeline `replay`: copies, filters, repeated and failed runs, the rate."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.pipelines import replay
from kourou.pipelines.copies import Sending
from kourou.pipelines.report import Report, epoch_ms
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.tables import Tables
from kourou.spark.schema import ALL_COLUMNS
from tests.pipelines.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def run(
    spark: SparkSession,
    namesrv: str,
    topic: str,
    into: str,
    *,
    out: Path | None = None,
    **more: Any,
) -> Report:
    chosen = {name: more.pop(name) for name in ("since_ms", "until_ms", "tags") if name in more}
    sending = Sending(
        name_server=namesrv,
        **{name: more.pop(name) for name in ("rate_max", "is_dry_run", "tasks") if name in more},
    )
    selection = Selection(name_server=namesrv, topics=(topic,), **chosen)
    options = replay.Options(selection=selection, into=into, sending=sending, **more)
    return replay.run(spark, options, None if out is None else Tables(str(out)))


def stored(spark: SparkSession, namesrv: str, topic: str) -> list[Row]:
    selection = Selection(name_server=namesrv, topics=(topic,))
    rows: list[Row] = read_messages(spark, selection, tuple(ALL_COLUMNS)).collect()
    return rows


def create(namesrv: str, topic: str, queues: int = 2) -> str:
    async def call() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(topic, queues=queues)

    asyncio.run(call())
    return topic


def test_copies_have_the_content_and_name_their_originals_and_are_sent_once(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(
        [
            Message(
                "r-full",
                b"%d" % n * (5_000 if n == 3 else 1),
                tags="eu" if n % 2 else "us",
                keys=[f"k-{n}", "all"],
                properties={"n": str(n), "__SHARDINGKEY": f"s-{n % 3}"},
                flag=n,
            )
            for n in range(30)
        ]
    )
    into = create(namesrv, "r-full-copy", queues=4)

    report = run(spark, namesrv, "r-full", into, out=tmp_path)

    assert report.metrics == {
        "messages": 30, "sent": 30, "sent_before": 0, "repeated": 0, "set_aside": 0,
    }  # fmt: skip
    originals = {row.offsetMsgId: row for row in stored(spark, namesrv, "r-full")}
    copies = stored(spark, namesrv, into)
    assert len(copies) == 30
    for copy in copies:
        original = originals[copy.properties["KOUROU_REPLAYED_FROM"]]
        for name in ("msgId", "body", "tags", "keys", "flag"):
            assert copy[name] == original[name], name
        assert copy.properties["n"] == original.properties["n"]
    by_key = Counter((row.properties["__SHARDINGKEY"], row.queueId) for row in copies)
    assert len(by_key) == 3, "each key has one queue"
    listed = spark.read.parquet(str(tmp_path / "messages")).collect()
    assert {row.action for row in listed} == {"to send"}
    assert {row.original for row in listed} == originals.keys()

    again = run(spark, namesrv, "r-full", into)
    assert (again.metrics["sent"], again.metrics["sent_before"]) == (0, 30)
    publish([Message("r-full", b"new")])
    assert run(spark, namesrv, "r-full", into).metrics["sent"] == 1
    assert len(stored(spark, namesrv, into)) == 31


def test_span_tags_and_expressions_select_messages(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish(
        [
            Message("r-some", b"%d" % n, tags="eu" if n % 2 else "us", properties={"n": str(n)})
            for n in range(20)
        ]
    )
    rows = sorted(stored(spark, namesrv, "r-some"), key=lambda row: row.storeTimestamp)
    middle_ms = epoch_ms(rows[10].storeTimestamp)
    later = sum(epoch_ms(row.storeTimestamp) >= middle_ms for row in rows)
    into = create(namesrv, "r-some-copy")

    def count(**options: Any) -> int | float:
        report = run(spark, namesrv, "r-some", into, is_dry_run=True, **options)
        return report.metrics["to_send"]

    assert count(since_ms=middle_ms) == later
    assert count(until_ms=middle_ms - 1) == 20 - later
    assert count(tags="eu") == 10
    assert count(where="CAST(properties.n AS INT) < 5 AND tags = 'us'") == 3
    assert stored(spark, namesrv, into) == [], "nothing is sent"


def test_into_the_same_topic_copies_are_not_copied_again(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("r-same", b"%d" % n) for n in range(5)])
    with pytest.raises(UsageError, match="add --same-topic"):
        run(spark, namesrv, "r-same", "r-same")

    counts = [
        run(spark, namesrv, "r-same", "r-same", same_topic=True).metrics["sent"] for _ in range(3)
    ]

    assert counts == [5, 0, 0]
    assert Counter(row.body for row in stored(spark, namesrv, "r-same")) == {
        b"%d" % n: 2 for n in range(5)
    }


def test_an_unknown_target_is_refused_before_anything_is_read(
    spark: SparkSession, namesrv: str
) -> None:
    with pytest.raises(UsageError, match=r"--into r-nowhere: .* kourou topic create r-nowhere"):
        run(spark, namesrv, "r-neither", "r-nowhere")


def test_messages_of_a_limited_rate_are_sent_in_the_order_of_their_store_times(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    publish([Message("r-slow", b"%03d" % n) for n in range(100)])
    into = create(namesrv, "r-slow-copy", queues=1)

    run(spark, namesrv, "r-slow", into, rate_max=50.0)

    originals = sorted(stored(spark, namesrv, "r-slow"), key=lambda row: row.storeTimestamp)
    copies = sorted(stored(spark, namesrv, into), key=lambda row: row.queueOffset)
    times = [row.storeTimestamp for row in copies]
    assert len(copies) == 100
    assert (times[-1] - times[0]).total_seconds() > 1.5
    at = {row.msgId: row.storeTimestamp for row in originals}
    order = [at[row.msgId] for row in copies]
    assert order == sorted(order)


def test_an_empty_selection_sends_nothing(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    create(namesrv, "r-empty")
    into = create(namesrv, "r-empty-copy")

    report = run(spark, namesrv, "r-empty", into)

    assert set(report.metrics.values()) == {0}
    assert report.tables[0].rows == []
