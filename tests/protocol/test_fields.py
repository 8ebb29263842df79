"""Header values are encoded as texts and decoded again; errors name the field."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedHeaderError
from kourou.protocol.fields import Int, Long, decode_fields, encode_fields
from tests.documented_errors import only_raises


@dataclass(slots=True)
class Header:
    group_name: str
    queue_id: Int
    commit_offset: Long
    unit_mode: bool
    short: str = field(default="", metadata={"wire": "s"})
    maybe_text: str | None = None
    maybe_int: Int | None = None
    maybe_long: Long | None = None
    maybe_bool: bool | None = None


REQUIRED = {"groupName": "g", "queueId": "1", "commitOffset": "2", "unitMode": "true"}
headers = st.builds(
    Header,
    st.text(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.text(),
    st.none() | st.text(),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.booleans(),
)


@given(headers)
def test_encoded_header_decodes_to_the_same(header: Header) -> None:
    assert decode_fields(Header, encode_fields(header)) == header


def test_names_are_camel_case_and_none_is_omitted() -> None:
    assert encode_fields(Header("g", 1, 2, True)) == REQUIRED | {"s": ""}


def test_missing_optional_fields_get_defaults_and_unknown_ones_are_ignored() -> None:
    assert decode_fields(Header, REQUIRED | {"x": "y"}) == Header("g", 1, 2, True)


@pytest.mark.parametrize("wire", sorted(REQUIRED))
def test_error_names_the_missing_required_field(wire: str) -> None:
    fields = {name: text for name, text in REQUIRED.items() if name != wire}
    with pytest.raises(MalformedHeaderError, match=f"field {wire} .* is missing"):
        decode_fields(Header, fields)


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("queueId", ""),
        ("queueId", "x"),
        ("queueId", "1_0"),
        ("queueId", " 1"),
        ("queueId", "1\n"),
        ("queueId", "1.0"),
        ("queueId", "\u0663"),
        ("queueId", "2147483648"),
        ("queueId", "-2147483649"),
        ("commitOffset", "9223372036854775808"),
        ("commitOffset", "-9223372036854775809"),
        ("commitOffset", "9" * 5000),
        ("maybeInt", "null"),
        ("maybeLong", "0x10"),
    ],
)
def test_number_that_java_refuses_is_refused_naming_the_field(wire: str, text: str) -> None:
    with pytest.raises(MalformedHeaderError, match=f"field {wire}"):
        decode_fields(Header, REQUIRED | {wire: text})


@pytest.mark.parametrize(("text", "value"), [("+5", 5), ("-0", 0), ("007", 7)])
def test_signs_and_leading_zeros_are_accepted_as_in_java(text: str, value: int) -> None:
    assert decode_fields(Header, REQUIRED | {"queueId": text}).queue_id == value


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_boolean_is_true_only_for_the_text_true(text: str, value: bool) -> None:
    assert decode_fields(Header, REQUIRED | {"unitMode": text}).unit_mode is value
    assert decode_fields(Header, REQUIRED | {"maybeBool": text}).maybe_bool is value


@given(st.dictionaries(st.sampled_from([*REQUIRED, "s", "maybeInt", "maybeBool"]), st.text()))
def test_arbitrary_texts_raise_only_malformed_header_errors(fields: dict[str, str]) -> None:
    with only_raises(MalformedHeaderError):
        decode_fields(Header, fields)
