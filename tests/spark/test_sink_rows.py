"""Tests of rows as messages: accepted columns, encoded messages, and refusals that name the row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from kourou.errors import ConfigError, InvalidMessageError
from kourou.model.properties import decode_properties
from kourou.spark.sink_rows import RowFormat, SinkRow, row_format, sink_rows
from kourou.spark.stamps import Stamps

STAMPS = Stamps("nightly", 4, 2)
BODY = ("body", "binary")


def ids() -> Callable[[], str]:
    numbers = count()
    return lambda: f"{next(numbers):032d}"


def format_of(*fields: tuple[str, str], **options: Any) -> RowFormat:
    return row_format(
        fields, **{"topic": "T", "key_column": None, "body_bytes_max": 1_000} | options
    )


def rows_of(batch: pa.RecordBatch, kind: RowFormat, first_row: int = 0) -> list[SinkRow]:
    return list(sink_rows(batch, kind, STAMPS, first_row, ids()))


def properties(row: SinkRow) -> dict[str, str]:
    return decode_properties(row.outgoing.properties.encode())


def test_all_columns_become_parts_of_the_message() -> None:
    schema = pa.schema(
        {
            "body": pa.binary(),
            "topic": pa.string(),
            "tags": pa.string(),
            "keys": pa.list_(pa.string()),
            "properties": pa.map_(pa.string(), pa.string()),
            "shardingKey": pa.string(),
            "deliverTime": pa.timestamp("us", tz="UTC"),
            "flag": pa.int32(),
            "msgId": pa.string(),
        }
    )
    at = datetime(2030, 1, 1, tzinfo=UTC).replace(microsecond=1)
    full = [b"x", "A", "eu", ["k1", "k2"], [("n", "1")], "s", at, 7, "KEPT"]
    empty = [b"y", "B", *[None] * 7]
    batch = pa.table([[a, b] for a, b in zip(full, empty, strict=True)], schema=schema)
    kind = format_of(
        BODY,
        ("topic", "string"),
        ("tags", "string"),
        ("keys", "array<string>"),
        ("properties", "map<string,string>"),
        ("shardingKey", "string"),
        ("deliverTime", "timestamp"),
        ("flag", "int"),
        ("msgId", "string"),
        topic=None,
    )

    first, second = rows_of(batch.to_batches()[0], kind, first_row=10)

    assert (first.number, first.sharding_key, first.is_alone) == (10, "s", True)
    assert (first.outgoing.topic, first.outgoing.body, first.outgoing.flag) == ("A", b"x", 7)
    assert first.outgoing.msg_ids == ("KEPT",)
    assert properties(first) == {
        "n": "1",
        "KEYS": "k1 k2",
        "TAGS": "eu",
        "WAIT": "true",
        "__SHARDINGKEY": "s",
        "TIMER_DELIVER_MS": str(int(at.timestamp()) * 1000 + 1),
        "KOUROU_SPARK_ID": "nightly:4:2:10",
        "UNIQ_KEY": "KEPT",
    }
    assert (second.number, second.sharding_key, second.is_alone) == (11, None, False)
    assert (second.outgoing.topic, second.outgoing.flag) == ("B", 0)
    assert properties(second) == {
        "WAIT": "true",
        "KOUROU_SPARK_ID": "nightly:4:2:11",
        "UNIQ_KEY": f"{0:032d}",
    }


def test_text_bodies_single_keys_and_epoch_milliseconds_are_accepted() -> None:
    batch = pa.record_batch({"body": ["é"], "keys": ["k"], "deliverTime": [1_900_000_000_123]})
    kind = format_of(("body", "string"), ("keys", "string"), ("deliverTime", "bigint"))

    [row] = rows_of(batch, kind)

    assert row.outgoing.body == "é".encode()
    assert properties(row)["KEYS"] == "k"
    assert properties(row)["TIMER_DELIVER_MS"] == "1900000000123"


def test_the_option_topic_overrides_the_column() -> None:
    batch = pa.record_batch({"topic": ["A", None], "body": [b"1", b"2"]})

    rows = rows_of(batch, format_of(("topic", "string"), BODY, topic="T"))

    assert [row.outgoing.topic for row in rows] == ["T", "T"]


def test_a_copy_has_reserved_properties_and_is_sent_alone() -> None:
    pairs = pa.array([[("RETRY_TOPIC", "orders")], None], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"body": [b"1", b"2"], "systemProperties": pairs})

    copy, other = rows_of(batch, format_of(BODY, ("systemProperties", "map<string,string>")))

    assert properties(copy)["RETRY_TOPIC"] == "orders"
    assert (copy.is_alone, other.is_alone) == (True, False)
    assert "RETRY_TOPIC" not in properties(other)


@pytest.mark.parametrize("name", ["DELAY", "TRAN_MSG", "TIMER_DELIVER_MS", "UNIQ_KEY", "color"])
def test_properties_of_a_delivery_are_not_copied(name: str) -> None:
    pairs = pa.array([[(name, "1")]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"body": [b"1"], "systemProperties": pairs})

    with pytest.raises(InvalidMessageError, match=f"row 0 .*: systemProperties has {name}"):
        rows_of(batch, format_of(BODY, ("systemProperties", "map<string,string>")))


def test_key_column_replaces_the_position_in_the_stamp() -> None:
    batch = pa.record_batch({"id": [17], "body": [b"1"]})

    [row] = rows_of(batch, format_of(("id", "bigint"), BODY, key_column="id"))

    assert properties(row)["KOUROU_SPARK_ID"] == "nightly:4:=17"


def test_a_copied_stamp_is_replaced() -> None:
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.record_batch(
        {"body": [b"1"], "properties": pa.array([[("KOUROU_SPARK_ID", "old:0:0:0")]], kind)}
    )

    [row] = rows_of(batch, format_of(BODY, ("properties", "map<string,string>")))

    assert properties(row)["KOUROU_SPARK_ID"] == "nightly:4:2:0"


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("body", None, "the body is null"),
        ("body", b"", "the body is empty"),
        ("body", b"x" * 1_001, "the body has 1001 bytes, more than maxMessageBytes, 1000"),
        ("topic", None, "the topic is null"),
        ("topic", "a b", "a b"),
        ("topic", "SCHEDULE_TOPIC_XXXX", "reserved for brokers"),
        ("tags", "", "tags is empty"),
        ("keys", ["a b"], "contains a blank"),
        ("properties", [("UNIQ_KEY", "1")], "UNIQ_KEY is set by the system"),
        ("properties", [("n", "x" * 40_000)], "at most 30000"),
        ("deliverTime", 1_600_000_000, "epoch milliseconds, not seconds"),
        ("msgId", "", "msgId is empty"),
        ("shardingKey", "", "__SHARDINGKEY is empty"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(column: str, value: object, text: str) -> None:
    types = {
        "topic": pa.string(),
        "body": pa.binary(),
        "tags": pa.string(),
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "deliverTime": pa.int64(),
        "msgId": pa.string(),
        "shardingKey": pa.string(),
    }
    good = {"topic": "T", "body": b"x"}
    both = [{**dict.fromkeys(types), **good}, {**dict.fromkeys(types), **good, column: value}]
    batch = pa.RecordBatch.from_pylist(both, schema=pa.schema(types))
    kind = RowFormat(tuple(types), None, None, 1_000)

    with pytest.raises(InvalidMessageError) as caught:
        rows_of(batch, kind, first_row=100)

    assert str(caught.value).startswith("row 101 of partition 2 of batch 4 of nightly: ")
    assert text in str(caught.value)


def test_a_null_key_is_named() -> None:
    batch = pa.record_batch({"id": pa.array([None], pa.string()), "body": [b"1"]})

    with pytest.raises(InvalidMessageError, match=r"row 0 .* the column id \(keyColumn\) is null"):
        rows_of(batch, format_of(("id", "string"), BODY, key_column="id"))


@pytest.mark.parametrize(
    ("fields", "options", "text"),
    [
        ([("value", "binary")], {}, "the column 'value' cannot be sent: drop it"),
        ([BODY, ("tag", "string")], {}, "did you mean tags?"),
        ([("topic", "string")], {}, "the column body is missing"),
        ([BODY], {"topic": None}, r"use .option('topic', ...), or add a column topic"),
        ([("body", "int")], {}, "column body has the type int, expected binary or string"),
        ([BODY, BODY], {}, "a column occurs twice"),
        ([BODY], {"key_column": "id"}, "keyColumn is 'id', but that column does not exist"),
        ([BODY, ("id", "double")], {"key_column": "id"}, "that column has the type double"),
    ],
)
def test_wrong_columns_are_refused_before_the_job(
    fields: list[tuple[str, str]], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        format_of(*fields, **options)

    assert text in str(caught.value)
