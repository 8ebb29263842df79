"""Tests of the Arrow batches; their types must equal those that Spark derives from the DDL."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from kourou.errors import ConfigError
from kourou.model.message import MessageExt
from kourou.spark import schema
from kourou.spark.schema import COLUMNS, arrow_schema, build_batch, choose_columns

FULL = MessageExt(
    topic="flights",
    body=b"\x00\xffbody",
    properties={"KEYS": "k1 k2", "TAGS": "UA", "UNIQ_KEY": "7F0000", "é": "ü"},
    flag=-5,
    queue_id=3,
    queue_offset=1 << 40,
    physical_offset=4096,
    sys_flag=8,
    born_at_ms=1_385_000_000_123,
    born_host=("127.0.0.1", 5000),
    store_at_ms=1_385_000_000_456,
    store_host=("127.0.0.1", 10911),
    reconsume_times=2,
    prepared_transaction_offset=0,
    store_size=200,
    body_crc=1,
    broker_name="broker-a",
)
BARE = dataclasses.replace(FULL, properties={}, body=b"", born_host=("2001:db8::1", 5000))


def test_a_message_becomes_a_row_with_every_column() -> None:
    [row] = build_batch([FULL], list(COLUMNS)).to_pylist(maps_as_pydicts="strict")

    assert row == {
        "topic": "flights",
        "brokerName": "broker-a",
        "queueId": 3,
        "queueOffset": 1 << 40,
        "msgId": "7F0000",
        "tags": "UA",
        "keys": ["k1", "k2"],
        "properties": {"KEYS": "k1 k2", "TAGS": "UA", "UNIQ_KEY": "7F0000", "é": "ü"},
        "flag": -5,
        "sysFlag": 8,
        "reconsumeTimes": 2,
        "body": b"\x00\xffbody",
        "bornHost": "127.0.0.1:5000",
        "bornTimestamp": datetime(2013, 11, 21, 2, 13, 20, 123_000, tzinfo=UTC),
        "storeTimestamp": datetime(2013, 11, 21, 2, 13, 20, 456_000, tzinfo=UTC),
    }


def test_a_message_without_properties_has_no_tag_and_the_offset_id() -> None:
    [row] = build_batch([BARE], list(COLUMNS)).to_pylist()

    assert row["tags"] is None
    assert row["keys"] == []
    assert row["properties"] == []
    assert row["msgId"] == BARE.offset_msg_id
    assert row["bornHost"] == "[2001:db8::1]:5000"
    assert row["body"] == b""


def test_properties_are_assigned_to_their_message() -> None:
    batch = build_batch([BARE, FULL, BARE, FULL], ["properties"])

    assert [len(row["properties"]) for row in batch.to_pylist()] == [0, 4, 0, 4]
    assert batch.validate(full=True) is None


def test_time_outside_of_a_timestamp_is_null() -> None:
    early, late = (dataclasses.replace(FULL, born_at_ms=ms) for ms in (-(1 << 63), (1 << 63) - 1))

    assert build_batch([early, late], ["bornTimestamp"])["bornTimestamp"].null_count == 2


def test_no_messages_make_an_empty_batch_of_the_same_schema() -> None:
    batch = build_batch([], list(COLUMNS))

    assert batch.num_rows == 0
    assert batch.schema.equals(arrow_schema(list(COLUMNS)))


def test_only_requested_columns_are_built_in_their_order() -> None:
    batch = build_batch([FULL], ["body", "queueId"])

    assert batch.schema.names == ["body", "queueId"]


def test_the_docstring_lists_the_columns_with_their_types() -> None:
    table = (schema.__doc__ or "").split("\n\n")[1]
    listed = [tuple(line.split()[:2]) for line in table.splitlines()[1:]]

    assert listed == [(column.name, column.spark_type) for column in COLUMNS.values()]


def test_user_schema_selects_columns_by_name() -> None:
    assert choose_columns([("body", "binary", True), ("topic", "string", True)]) == (
        "body",
        "topic",
    )


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (("payload", "binary", True), "unknown column 'payload'; columns are topic, brokerName"),
        (("body", "string", True), "body has the type binary, but the schema asks for string"),
        (("body", "binary", False), "body is declared NOT NULL"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(field: tuple[str, str, bool], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        choose_columns([field])


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="no columns"):
        choose_columns([])
