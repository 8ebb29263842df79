"""Tests of JSON bodies as struct columns."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError, MalformedMessageError
from kourou.spark.body_format import BodyDecoder, JsonDecoder, read_columns
from kourou.spark.body_schema import parse_body_schema
from kourou.spark.option_table import BadBodyMode, BodyFormat
from kourou.spark.read_options import ColumnOptions
from kourou.spark.schema import COLUMNS, choose_columns, ddl

OPTIONS = ColumnOptions(body_format=BodyFormat.JSON, body_schema="id BIGINT, name STRING")
GOOD, BAD = b'{"id": 7, "name": "a", "more": [1]}', b'{"id": "7"}'
ROW = {"id": 7, "name": "a"}


def decode(schema: str, *bodies: bytes) -> tuple[list[Any], dict[int, str]]:
    column, reasons = JsonDecoder(parse_body_schema(schema)).decode(bodies)
    column.validate(full=True)
    return column.to_pylist(), reasons


def value_of(schema: str, text: str) -> Any:
    """Return the decoded value of a field; raises an error if it does not fit."""
    [row], reasons = decode(f"a {schema}", b'{"a": %b}' % text.encode())
    if reasons:
        raise ValueError(reasons[0])
    return row["a"]


def batch_of(*bodies: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"topic": "flights", "brokerName": "broker-a", "queueId": 3, "queueOffset": 100 + n,
             "body": body}
            for n, body in enumerate(bodies)
        ],
        schema=pa.schema(
            [(name, COLUMNS[name].arrow_type)
             for name in ("topic", "brokerName", "queueId", "queueOffset", "body")]
        ),
    )  # fmt: skip


# Values


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("BOOLEAN", "true", True),
        ("TINYINT", "-128", -128),
        ("SMALLINT", "32767", 32767),
        ("INT", "-2147483648", -(1 << 31)),
        ("BIGINT", "9223372036854775807", (1 << 63) - 1),
        ("FLOAT", "1.5", 1.5),
        ("DOUBLE", "1", 1.0),
        ("STRING", '"\\u00e9\\n"', "é\n"),
        ("BINARY", '"aGk="', b"hi"),
        ("DATE", '"2026-11-24"', dt.date(2026, 11, 24)),
        ("TIMESTAMP", '"2026-11-24T02:00:00+02:00"', dt.datetime(2026, 11, 24, tzinfo=dt.UTC)),
        ("TIMESTAMP_NTZ", '"2026-11-24 01:02:03"', dt.datetime(2026, 11, 24, 1, 2, 3)),  # noqa: DTZ001
        ("DECIMAL(5,2)", "1.5", Decimal("1.50")),
        ("DECIMAL(5,2)", '"-999.99"', Decimal("-999.99")),
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("ARRAY<ARRAY<INT>>", "[[], null, [1]]", [[], None, [1]]),
        ("MAP<STRING,INT>", '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
        ("STRUCT<x: INT>", '{"x": 1, "y": 2}', {"x": 1}),
        ("ARRAY<STRUCT<x: INT>>", '[{"x": 1}, null, {}]', [{"x": 1}, None, {"x": None}]),
        ("MAP<STRING,STRUCT<x: ARRAY<INT>>>", '{"k": {"x": [1]}}', [("k", {"x": [1]})]),
        *((kind, "null", None) for kind in ("BIGINT", "STRING", "ARRAY<INT>", "STRUCT<x: INT>")),
        ("MAP<STRING,INT>", "null", None),
    ],
)  # fmt: skip
def test_value_that_fits_its_type(schema: str, text: str, value: object) -> None:
    assert value_of(schema, text) == value


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("TINYINT", "128"), ("SMALLINT", "-32769"), ("INT", "2147483648"),
        ("BIGINT", "9223372036854775808"), ("INT", "1.0"), ("INT", '"1"'), ("INT", "true"),
        ("DOUBLE", "1e400"), ("DOUBLE", "NaN"), ("STRING", "1"), ("STRING", '"\\ud800"'),
        ("BOOLEAN", "1"), ("BINARY", '"?"'), ("DATE", '"24.11.2026"'),
        ("TIMESTAMP", '"2026-11-24T01:02:03"'), ("TIMESTAMP_NTZ", '"2026-11-24T01:02:03Z"'),
        ("TIMESTAMP", "1"),
        ("DECIMAL(5,2)", "1.255"), ("DECIMAL(5,2)", "1000"), ("DECIMAL(5,2)", "1e999999"),
        ("DECIMAL(5,2)", '"NaN"'), ("ARRAY<INT>", "1"), ("ARRAY<INT>", "[[1]]"),
        ("MAP<STRING,INT>", "[1]"), ("STRUCT<x: INT>", "[]"), ("STRUCT<x: INT>", '{"x": "1"}'),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_its_type(schema: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        value_of(schema, text)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"1", b"[]", b'"x"', b"{", b"{}{}", b"{} x", b'{"id": 1,}', b"\xff",
        b'{"name": "\xff"}', b'{"id":1}\0', b"\xef\xbb\xbf{}", b'{"z": ' + b"[" * 100_000,
        b'{"id": 1}, {"id": 2}', b"{'id': 1}",
    ],
)  # fmt: skip
def test_body_that_is_no_json_object_does_not_affect_others(body: bytes) -> None:
    rows, reasons = decode("id BIGINT, name STRING", GOOD, body, GOOD)

    assert rows == [ROW, None, ROW]
    assert list(reasons) == [1]


def test_absent_fields_are_null_and_the_last_of_equal_ones_counts() -> None:
    assert decode("id BIGINT, `a b` INT", b"{}", b'{"a b": 1, "a b": 2}') == (
        [{"id": None, "a b": None}, {"id": None, "a b": 2}],
        {},
    )


def test_reason_names_the_field() -> None:
    assert decode("x STRUCT<y: INT>", b'{"x": {"y": "1"}}')[1] == {
        0: "Expected `int | null`, got `str` - at `$.x.y`"
    }


pairs = st.tuples(st.text("ab", max_size=2), st.none() | st.just(1))
objects = st.fixed_dictionaries({"l": st.lists(st.fixed_dictionaries({"x": st.just(1)}))})
values = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "l": st.none() | st.lists(st.none() | st.booleans(), max_size=3),
        "m": st.none() | st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0]),
        "o": st.none() | objects,
    }
)


@given(st.lists(st.none() | values, max_size=5))
def test_decoded_objects_equal_the_encoded_ones(rows: list[dict[str, Any] | None]) -> None:
    encoded = [
        json.dumps(row and {**row, "m": row["m"] if row["m"] is None else dict(row["m"])}).encode()
        for row in rows
    ]
    schema = (
        "i BIGINT, d DOUBLE, s STRING, l ARRAY<BOOLEAN>, m MAP<STRING,INT>,"
        "o STRUCT<l: ARRAY<STRUCT<x: INT>>>"
    )

    decoded, reasons = decode(schema, *encoded)

    assert decoded == rows
    assert list(reasons) == [number for number, row in enumerate(rows) if row is None]


# Modes


def test_body_that_does_not_fit_is_null_in_mode_permissive() -> None:
    decoder = BodyDecoder(OPTIONS, ["queueOffset", "body"])

    converted = decoder.convert(batch_of(GOOD, BAD, GOOD))

    assert converted.schema == decoder.schema
    assert converted.to_pylist() == [
        {"queueOffset": 100, "body": ROW},
        {"queueOffset": 101, "body": None},
        {"queueOffset": 102, "body": ROW},
    ]


def test_corrupt_column_has_the_text_of_a_body_that_does_not_fit() -> None:
    options = ColumnOptions(
        body_format=BodyFormat.JSON, body_schema="id BIGINT", corrupt_column="_corrupt_record"
    )
    decoder = BodyDecoder(options, ["_corrupt_record", "body"])

    converted = decoder.convert(batch_of(GOOD, BAD, b"\xff{"))

    assert decoder.record_names == ("body",)
    assert converted["_corrupt_record"].to_pylist() == [None, '{"id": "7"}', "\ufffd{"]
    alone = BodyDecoder(options, ["_corrupt_record"])
    assert alone.convert(batch_of(BAD)).to_pylist() == [{"_corrupt_record": '{"id": "7"}'}]


@pytest.mark.parametrize("names", [["body"], ["queueOffset"]])
def test_row_of_a_body_that_does_not_fit_is_dropped(names: list[str]) -> None:
    options = ColumnOptions(
        body_format=BodyFormat.JSON, body_schema="id BIGINT", mode=BadBodyMode.DROP
    )
    decoder = BodyDecoder(options, names)

    converted = decoder.convert(batch_of(BAD, GOOD, BAD))

    assert "body" in decoder.record_names
    assert converted.to_pylist() == [
        {"body": {"id": 7}} if names == ["body"] else {"queueOffset": 101}
    ]


def test_body_that_does_not_fit_fails_with_its_message_in_mode_fail_fast() -> None:
    options = ColumnOptions(
        body_format=BodyFormat.JSON, body_schema="id BIGINT", mode=BadBodyMode.FAIL
    )
    decoder = BodyDecoder(options, ["body"])

    assert set(decoder.record_names) == {"topic", "brokerName", "queueId", "queueOffset", "body"}
    assert decoder.convert(batch_of(GOOD)).schema.names == ["body"]
    with pytest.raises(
        MalformedMessageError,
        match=r"message 101 of queue 3 of flights on broker-a: .* got `str`",
    ):
        decoder.convert(batch_of(GOOD, BAD, b""))


def test_bodies_are_not_decoded_if_no_column_needs_them() -> None:
    decoder = BodyDecoder(OPTIONS, ["queueOffset"])
    batch = batch_of(BAD).select(["queueOffset"])

    assert decoder.record_names == ("queueOffset",)
    assert decoder.convert(batch).equals(batch)


# Columns


def test_columns_of_a_read_follow_its_options() -> None:
    assert read_columns(ColumnOptions()) == COLUMNS
    omitted = ColumnOptions(include_body=False, include_properties=False)
    assert COLUMNS.keys() - read_columns(omitted).keys() == {"body", "properties"}
    added = read_columns(ColumnOptions(include_offset_msg_id=True))
    assert added.keys() - COLUMNS.keys() == {"offsetMsgId"}


def test_decoded_body_has_the_type_of_its_schema() -> None:
    columns = read_columns(
        ColumnOptions(
            body_format=BodyFormat.JSON, body_schema="`a b` INT", corrupt_column="_corrupt_record"
        )
    )

    assert "`body` struct<`a b`: int>," in ddl(columns)
    assert ddl(columns).endswith(", `_corrupt_record` string")
    fields = [("body", "struct<a b:int>", True), ("_corrupt_record", "string", True)]
    assert choose_columns(fields, columns) == ("body", "_corrupt_record")
    with pytest.raises(ConfigError, match=r"body has the type struct<a b:int>, but .* binary"):
        choose_columns([("body", "binary", True)], columns)


@pytest.mark.parametrize("name", ["topic", "offsetMsgId"])
def test_corrupt_column_must_have_a_name_of_its_own(name: str) -> None:
    options = ColumnOptions(
        body_format=BodyFormat.JSON, body_schema="id BIGINT", corrupt_column=name
    )
    with pytest.raises(ConfigError, match=f"columnNameOfCorruptRecord is '{name}'"):
        read_columns(options)
