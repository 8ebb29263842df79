"""Tests of the pipeline `dead-letters`: fingerprints, causes, and real dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.model.message import Message
from kourou.pipelines import dead_letters
from kourou.pipelines.selection import Selection
from tests.pipelines.conftest import Publish, Reject

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, msgId STRING, "
    "properties MAP<STRING, STRING>, reconsumeTimes INT, storeTimestamp TIMESTAMP"
)


def dead(spark: SparkSession, reasons: Sequence[str | None]) -> DataFrame:
    rows = [
        (
            "%DLQ%billing",
            "broker-a",
            0,
            n,
            f"id-{n}",
            {"RETRY_TOPIC": "orders"} | ({} if reason is None else {"KOUROU_DLQ_REASON": reason}),
            16,
            NOON + timedelta(seconds=n),
        )
        for n, reason in enumerate(reasons)
    ]
    return dead_letters.letters(spark.createDataFrame(rows, SCHEMA))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("no account 17", "no account #"),
        ("KeyError: 'abc-7'", "KeyError: '…'"),
        ('bad "x" at 0x7fab', "bad '…' at #"),
        ("id 7F0000010001F00D6B2E0A1B2C3D0000  lost", "id # lost"),
        ("order 123e4567-e89b-12d3-a456-426614174000 is gone", "order # is gone"),
        ("timeout after 5.25 s", "timeout after #.# s"),
        ("a faded decade", "a faded decade"),
    ],
)
def test_a_fingerprint_has_no_ids_and_numbers(
    spark: SparkSession, reason: str, expected: str
) -> None:
    [row] = spark.range(1).select(dead_letters.fingerprint(F.lit(reason)).alias("f")).collect()

    assert row.f == expected


def test_dead_letters_of_one_cause_are_one_row_with_the_latest_samples(
    spark: SparkSession,
) -> None:
    found = dead(spark, [f"no account {n}" for n in range(5)] + ["disk full", None, " "])

    rows: dict[str | None, Any] = {
        row.fingerprint: row for row in dead_letters.causes(found).collect()
    }

    assert {print_: row.messages for print_, row in rows.items()} == {
        "no account #": 5,
        "disk full": 1,
        None: 2,
    }
    accounts = rows["no account #"]
    assert (accounts.group, accounts.topic, accounts.reason) == (
        "billing",
        "orders",
        "no account 4",
    )
    assert accounts.samples == ["broker-a/0@4", "broker-a/0@3", "broker-a/0@2"]
    assert accounts.sampleIds == ["id-4", "id-3", "id-2"]
    assert accounts.lastAt - accounts.firstAt == timedelta(seconds=4)


def test_real_dead_letters_are_grouped_by_their_reason(
    spark: SparkSession, namesrv: str, publish: Publish, reject: Reject
) -> None:
    publish([Message("t-dying", b"%d" % n) for n in range(4)])
    reject("t-dying", "t-billing", 4)
    selection = Selection(name_server=namesrv, topics=("%DLQ%t-billing",))

    report = dead_letters.run(spark, dead_letters.Options(selection=selection))

    assert report.metrics == {"messages": 4, "groups": 1, "without_reason": 0, "causes": 1}
    [row] = report.tables[0].documents()
    assert (row["group"], row["topic"], row["messages"]) == ("t-billing", "t-dying", 4)
    assert str(row["reason"]).startswith("no account ")
