"""Tests of the choice of messages to send again: copies, repeated messages, refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import UsageError
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.pipelines.copies import (
    Lookup,
    Sending,
    candidates,
    check_target,
    marked,
    matching,
    plain_properties,
)
from kourou.spark.schema import ALL_COLUMNS, ddl

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SENDING = Sending(name_server="127.0.0.1:1", body_bytes_max=10)
COPIES = "topic STRING, original STRING, copyIds ARRAY<STRING>"


def message(n: int = 0, **values: Any) -> Row:
    plain = {
        "topic": "t",
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": n,
        "msgId": f"id-{n}",
        "keys": [],
        "properties": {"UNIQ_KEY": f"id-{n}"},
        "flag": 0,
        "body": b"x",
        "storeTimestamp": NOON,
        "offsetMsgId": f"at-{n}",
    }
    row = dict.fromkeys(ALL_COLUMNS) | plain | values
    return Row(**row)


def frame(spark: SparkSession, *messages: Row) -> DataFrame:
    return spark.createDataFrame([tuple(one) for one in messages], ddl(ALL_COLUMNS))


def lookup() -> Lookup:
    return Lookup(write_id="w", original=F.col("offsetMsgId"))


def judged(
    messages: DataFrame, copies: list[tuple[str, str, list[str]]], **columns: Any
) -> dict[str, tuple[str, str | None]]:
    """Return the action and the reason of each message, by its unique id."""
    defaults = {
        "topic": F.lit("target"),
        "original": F.col("offsetMsgId"),
        "properties": plain_properties(),
    }
    found = candidates(messages, **{**defaults, **columns})
    stored = messages.sparkSession.createDataFrame(copies, COPIES)
    rows = marked(found, stored, ("target",), SENDING, lookup()).collect()
    return {row.msgId: (row.action, row.reason) for row in rows}


def test_a_message_is_sent_before_if_a_copy_names_its_position_and_has_its_id(
    spark: SparkSession,
) -> None:
    messages = frame(spark, *(message(n) for n in range(4)), message(9, properties={"a": "b"}))
    copies = [
        ("target", "at-0", ["other", "id-0"]),
        ("target", "at-1", ["of a store that was replaced"]),
        ("elsewhere", "at-2", ["id-2"]),
        ("target", "at-9", ["given by the broker"]),  # the original has no unique id
    ]

    assert {msg_id: action for msg_id, (action, _) in judged(messages, copies).items()} == {
        "id-0": "sent before",
        "id-1": "to send",
        "id-2": "to send",
        "id-3": "to send",
        "id-9": "sent before",
    }


def test_progress_and_repetition_exclude_messages(spark: SparkSession) -> None:
    found = judged(
        frame(spark, *(message(n) for n in range(4))),
        [],
        is_sent_before=F.col("queueOffset") < F.when(F.col("queueOffset") != 2, 1),
        is_repeated=F.col("queueOffset") == 3,
    )

    actions = [found[f"id-{n}"][0] for n in range(4)]
    assert actions == ["sent before", "to send", "to send", "repeated"]


def test_a_message_that_cannot_be_sent_is_set_aside_with_the_reason(spark: SparkSession) -> None:
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"tags": None}, "it names no original topic"),
        ({"tags": "gone"}, "there is no topic gone"),
        ({"tags": "target", "body": b""}, "it has no body"),
        ({"tags": "target", "body": b"x" * 11}, "its body is larger than 10 bytes"),
        ({"tags": "target", "body": b"x" * 10}, None),
    ]
    messages = frame(spark, *(message(n, **values) for n, (values, _) in enumerate(cases)))

    found = judged(messages, [], topic=F.col("tags"))

    assert found == {
        f"id-{n}": ("to send" if reason is None else "set aside", reason)
        for n, (_, reason) in enumerate(cases)
    }


def test_properties_are_measured_as_the_sink_encodes_them(spark: SparkSession) -> None:
    sent = {
        "é": "ü",
        "KEYS": "k1 k2",
        "TAGS": "eu",
        "WAIT": "true",
        "UNIQ_KEY": "id-0",
        names.SPARK_ID: "w:0:=at-0/id-0",
        "RETRY_TOPIC": "orders",
    }
    room = SENT_PROPERTIES_SIZE_MAX - len(encode_properties({**sent, "fill": "x"})) + 1
    rows = [
        message(
            n,
            keys=["k1", "k2"],
            tags="eu",
            properties={"é": "ü", "fill": "x" * (room + n), "UNIQ_KEY": f"id-{n}"},
        )
        for n in range(2)
    ]

    found = judged(
        frame(spark, *rows),
        [],
        system_properties=F.create_map(F.lit("RETRY_TOPIC"), F.lit("orders")),
    )

    assert found == {
        "id-0": ("to send", None),
        "id-1": ("set aside", "its properties are larger than 30,000 bytes"),
    }


def test_a_plain_copy_has_the_properties_of_the_program_alone(spark: SparkSession) -> None:
    system = ("DELAY", "TIMER_DELIVER_MS", "TRAN_MSG", "__transactionId__", "RETRY_TOPIC", "KEYS")
    origin = ("ORIGIN_MESSAGE_ID", "KOUROU_REDRIVEN_FROM", "KOUROU_SPARK_ID", "INNER_NUM")
    properties = dict.fromkeys((*system, *origin), "1") | {"color": "red", "__SHARDINGKEY": "s"}

    rows = frame(spark, message(properties=properties)).select(plain_properties()).collect()

    assert rows[0][0] == {"color": "red", "__SHARDINGKEY": "s"}


def test_a_wrong_expression_is_refused_in_one_line(spark: SparkSession) -> None:
    messages = frame(spark, message())

    for where in ("colour = 'red'", "body >", "queueOffset + 1"):
        with pytest.raises(UsageError) as caught:
            matching(messages, where)
        assert str(caught.value).startswith(f"--where {where!r}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "%RETRY%billing", "%DLQ%billing"])
def test_reserved_topics_are_no_targets(topic: str) -> None:
    with pytest.raises(UsageError, match=f"--into {topic}: copies are not sent to topics of"):
        check_target(topic, "--into")
