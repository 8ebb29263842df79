"""Configuration texts are decoded like java.util.Properties, and encoded texts decode again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from tests.documented_errors import only_raises

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        (b"", {}),
        (b"longPollingEnable=true\n", {"longPollingEnable": "true"}),
        (b"a=1\r\nb:2\rc 3\nd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        (b"  a = 1 ", {"a": "1 "}),
        (b"# comment\n ! another\n\n  \na=1", {"a": "1"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"key", {"key": ""}),
        (b"=value", {"": "value"}),
        (b"a==b", {"a": "=b"}),
        (b"a=one\\\n    two\\\n#three", {"a": "onetwo#three"}),
        (b"a=ends\\\\\nb=1", {"a": "ends\\", "b": "1"}),
        (b"a=cut\\", {"a": "cut"}),
        (b"a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        (b"a=\\t\\n\\r\\f\\x\\u00e9", {"a": "\t\n\r\fx\u00e9"}),
        (b"a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        (b"a=\\ud83d", {"a": "\ufffd"}),
        ("a=\u00e9".encode(), {"a": "\u00e9"}),
    ],
)
def test_text_is_decoded_as_in_java(text: bytes, properties: dict[str, str]) -> None:
    assert decode_properties_text(text) == properties


@pytest.mark.parametrize("text", [b"a=\xff", b"a=\\u00g0", b"a=\\u12"])
def test_invalid_text_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedBodyError, match="not properties"):
        decode_properties_text(text)


def test_lines_are_sorted_and_escaped_only_as_needed() -> None:
    properties = {"b": "c:\\store", "a": "1s 5s", " k=": " v\n", "#": "\u00e9"}

    text = encode_properties_text(properties)

    assert text == b"\\ k\\==\\ v\\n\n\\#=\\u00e9\na=1s 5s\nb=c:\\\\store\n"


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
@settings(max_examples=200, deadline=None)
def test_encoded_values_decode_to_the_same(properties: dict[str, str]) -> None:
    assert decode_properties_text(encode_properties_text(properties)) == properties


@given(st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_raise_only_the_documented_error(text: bytes) -> None:
    with only_raises(MalformedBodyError):
        decode_properties_text(text)
