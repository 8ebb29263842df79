"""Tests of the pipeline `redrive`: its rule is that of `kourou dlq redrive`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.client.administration.admin import AdminClient, Redrive
from kourou.model import properties as names
from kourou.model import redrive as rule
from kourou.model.message import Message
from kourou.pipelines import redrive
from kourou.pipelines.copies import Sending
from kourou.pipelines.report import Report
from kourou.pipelines.selection import Selection, read_messages
from kourou.spark.schema import ALL_COLUMNS
from tests.pipelines.conftest import Publish, Reject

pytestmark = [pytest.mark.spark, pytest.mark.slow]

T = TypeVar("T")

OF_ONE_SEND = (names.SPARK_ID, names.WAIT, names.MSG_REGION, names.TRACE_ON, names.CLUSTER)
"""Properties that a send adds to any message."""


def run(
    spark: SparkSession, namesrv: str, *groups: str, is_dry_run: bool = False, **more: Any
) -> Report:
    sending = Sending(name_server=namesrv, is_dry_run=is_dry_run)
    return redrive.run(spark, redrive.Options(groups=groups, sending=sending, **more))


def administer(namesrv: str, call: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    async def connected() -> T:
        async with AdminClient(namesrv) as admin:
            return await call(admin)

    return asyncio.run(connected())


def stored(spark: SparkSession, namesrv: str, topic: str) -> list[Row]:
    selection = Selection(name_server=namesrv, topics=(topic,))
    rows: list[Row] = read_messages(spark, selection, tuple(ALL_COLUMNS)).collect()
    return rows


@pytest.fixture
def dead(namesrv: str, publish: Publish, reject: Reject) -> Callable[[str, int], str]:
    """Return a function that makes dead letters of a group of its name, and returns the name."""

    def kill(name: str, count: int) -> str:
        publish(
            [
                Message(name, b"%d" % n, keys=[f"k-{n}"], tags="a", properties={"n": str(n)})
                for n in range(count)
            ]
        )
        reject(name, f"g-{name}", count)
        return f"g-{name}"

    return kill


def test_neither_tool_sends_what_the_other_has_sent(
    spark: SparkSession, namesrv: str, dead: Callable[[str, int], str]
) -> None:
    group = dead("d-both", 6)

    async def redrive_one(admin: AdminClient) -> None:
        letters = await admin.dead_letters(group)
        assert await admin.redrive(group, letters[2].message) is not None

    administer(namesrv, redrive_one)
    assert run(spark, namesrv, group, is_dry_run=True).metrics["to_send"] == 5
    done = run(spark, namesrv, group).metrics
    assert (done["sent"], done["sent_before"]) == (5, 1)

    assert administer(namesrv, lambda admin: admin.redrive_all(group)) == Redrive(skipped=6)
    again = run(spark, namesrv, group).metrics
    assert (again["sent"], again["sent_before"]) == (0, 6)
    copies = stored(spark, namesrv, f"%RETRY%{group}")
    assert sorted(row.body for row in copies) == [b"%d" % n for n in range(6)]


def test_letters_before_the_progress_of_the_other_tool_are_not_sent(
    spark: SparkSession, namesrv: str, dead: Callable[[str, int], str]
) -> None:
    group = dead("d-progress", 4)
    assert administer(namesrv, lambda admin: admin.redrive_all(group)) == Redrive(sent=4)

    assert run(spark, namesrv, group).metrics["sent_before"] == 4
    # The copies are in the retry topic, but the progress counts for all destinations.
    assert run(spark, namesrv, group, to_topic=True).metrics["sent_before"] == 4


@pytest.mark.parametrize("to_topic", [False, True])
def test_both_tools_send_equal_copies(
    spark: SparkSession, namesrv: str, dead: Callable[[str, int], str], to_topic: bool
) -> None:
    group = dead(f"d-equal-{to_topic}", 1)
    run(spark, namesrv, group, to_topic=to_topic)

    async def redrive_again(admin: AdminClient) -> None:
        [letter] = await admin.dead_letters(group)
        assert await admin.redrive(group, letter.message, to_topic=to_topic) is None
        await admin.redrive(group, letter.message, to_topic=to_topic, again=True)

    administer(namesrv, redrive_again)

    topic = f"d-equal-{to_topic}" if to_topic else f"%RETRY%{group}"
    copies = [row for row in stored(spark, namesrv, topic) if names.REDRIVEN_FROM in row.properties]
    assert len(copies) == 2
    contents = [
        (
            row.msgId,
            row.body,
            row.tags,
            row["keys"],
            {name: value for name, value in row.properties.items() if name not in OF_ONE_SEND},
        )
        for row in copies
    ]
    assert contents[0] == contents[1]


def test_columns_follow_the_rule_of_redrives(spark: SparkSession) -> None:
    """The rule is a function of Python, and the pipeline computes it by columns."""
    known = (*names.RESERVED, *names.DELIVERY_PROPERTIES, names.SPARK_ID, names.REDRIVEN_FROM)
    names_known = sorted({*known, *rule.ORIGIN_TOPICS, "color", "n"})
    random = Random(17)
    properties = [
        {
            name: random.choice(["orders", "%RETRY%g", "%DLQ%g", "1"])
            for name in random.sample(names_known, random.randrange(len(names_known)))
        }
        for _ in range(200)
    ]
    rows = [(f"at-{n}", one) for n, one in enumerate(properties)]
    frame = spark.createDataFrame(rows, "offsetMsgId STRING, properties MAP<STRING, STRING>")
    own = {names.KEYS, names.TAGS, names.UNIQ_KEY, names.SPARK_ID}

    for to_topic in (False, True):
        users, reserved = redrive.redriven_properties(to_topic=to_topic)
        found = frame.select(
            F.map_concat(users, reserved).alias("copy"), redrive.origin_topic().alias("origin")
        ).collect()
        for (offset_msg_id, one), row in zip(rows, found, strict=True):
            expected = rule.redriven_properties(one, offset_msg_id, to_topic=to_topic)
            columns = {name: value for name, value in expected.items() if name not in own}
            assert row.copy == columns
            assert row.origin == rule.origin_topic(one)


def test_filters_select_and_vanished_topics_are_set_aside(
    spark: SparkSession, namesrv: str, dead: Callable[[str, int], str]
) -> None:
    group = dead("d-gone", 5)

    def count(**options: Any) -> int | float:
        return run(spark, namesrv, group, is_dry_run=True, **options).metrics["to_send"]

    assert count(reason="account 3") == 1
    assert count(origins=("d-gone",)) == 5
    assert count(origins=("d-other",)) == 0
    where = "`group` = 'g-d-gone' AND originTopic = 'd-gone' AND keys[0] >= 'k-3'"
    assert count(where=where) == 2
    assert count(tags="b") == 0
    administer(namesrv, lambda admin: admin.delete_topic("d-gone"))

    report = run(spark, namesrv, group, to_topic=True)

    assert (report.metrics["sent"], report.metrics["set_aside"]) == (0, 5)
    assert report.notes == ["5 set aside: there is no topic d-gone"]
