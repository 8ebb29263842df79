"""Messages encoded field by field are those of the general conversion."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kourou.model import properties as names
from kourou.model.message import MessageExt, message_from_record
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.codes import LanguageCode
from kourou.proxy import plain_messages
from kourou.proxy.convert import received_message
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.plain_messages import encode_delivery
from tests.proxy.test_convert import MESSAGE

NOW_MS = 1_795_228_890_123
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9
)
property_names = st.one_of(st.sampled_from([*sorted(names.RESERVED), names.SHARDING_KEY]), texts)
property_values = st.one_of(texts, st.sampled_from(["true", "12", "a b  c", " "]))
pieces = st.one_of(
    st.sampled_from([
        *(f"{name}\x01" for name in (names.TAGS, names.KEYS, names.UNIQ_KEY, names.BORN_HOST)),
        "color\x01", f"{names.CRC32}\x010123456789", "\x01", "\x02", "red", "2", " ",
    ]).map(str.encode),
    st.sampled_from([b"\xe4", b"\xb8", "\u4e2d".encode()]),
)  # fmt: skip


def assert_same(**changes: Any) -> None:
    message = dataclasses.replace(MESSAGE, **changes)
    assert_encoded_as(message, message)


def assert_encoded_as(encoded: MessageExt, expected: MessageExt) -> None:
    data = encode_delivery(encoded, "handle", LanguageCode.GO, NOW_MS)
    general = received_message(expected, "handle", LanguageCode.GO, NOW_MS)
    assert parse(v2.ReceiveMessageResponse, data) == v2.ReceiveMessageResponse(message=general)


def record(properties: bytes, *, host: bytes = bytes((10, 0, 0, 9))) -> MessageExt:
    """Return a message as decoded from a record, of which nothing has been read."""
    times = (1_700_000_000_001, host, 5, 1_700_000_000_002, host, 10911)
    fields = (200, 0, 0, 3, 0, 7, 100, 0, *times, 0, 0, 4)
    return message_from_record(fields, "T", b"body", properties)


@given(texts=st.lists(st.lists(pieces, max_size=9).map(b"".join), min_size=1, max_size=3))
def test_property_texts_are_encoded_as_decoded(texts: list[bytes]) -> None:
    for text in texts:
        assert_encoded_as(record(text), record(text))


def test_last_one_of_equal_properties_counts() -> None:
    for name in (names.TAGS, names.KEYS, names.UNIQ_KEY, names.BORN_HOST, "color"):
        for values in (("a", "b"), ("a", " "), ("a", "")):
            text = b"".join(f"{name}\x01{value}\x02".encode() for value in values)
            assert_encoded_as(record(text), record(text))


def test_message_that_was_read_is_encoded_as_before() -> None:
    text = b"TAGS\x01a\x02color\x01red\x02"
    for host in (bytes((10, 0, 0, 9)), bytes(15) + b"\x01"):
        read = record(text, host=host)
        assert read.tags == "a"
        read.properties["color"] = "blue"
        expected = record(text.replace(b"red", b"blue"), host=host)
        assert_encoded_as(read, expected)


def test_only_recent_properties_that_may_come_again_are_kept() -> None:
    kept = plain_messages._properties
    kept.clear()
    varying = b"UNIQ_KEY\x01%d\x02KEYS\x01%d\x02BORN_TIMESTAMP\x01%d\x02__CRC32#\x01%010d\x02"
    for number in range(5_000):
        text = varying % ((number,) * 4) + b"n\x01%d\x02long\x01%0200d\x02" % (number, number)
        encode_delivery(record(text), "handle", LanguageCode.GO, NOW_MS)
    assert 0 < len(kept) <= 4_096
    assert all(text == b"" or text.startswith(b"n\x01") for text in kept)


@given(
    properties=st.dictionaries(property_names, property_values, max_size=6),
    topic=st.sampled_from(["T", "%RETRY%g", "space%T", "%RETRY%space%g", "é"]),
    body=st.binary(max_size=200),
    queue_id=st.integers(min_value=-1, max_value=1 << 20),
    queue_offset=st.integers(min_value=-1, max_value=1 << 62),
    born_at_ms=st.integers(min_value=-5, max_value=1 << 45),
    store_at_ms=st.integers(min_value=-5, max_value=1 << 45),
    reconsume_times=st.integers(min_value=-1, max_value=1 << 31),
    sys_flag=st.sampled_from([0, COMPRESSED]),
)
def test_deliveries_are_those_of_the_general_conversion(**changes: Any) -> None:
    assert_same(**changes)


def test_longest_names_and_bodies_are_encoded_whole() -> None:
    assert_same(
        topic="T" * 127, body=b"x" * 5_000_000, store_host=("2001:db8::1", 65535),
        properties={"name" * 50: "v" * 30_000, names.UNIQ_KEY: "i" * 300, names.KEYS: "k " * 99},
    )  # fmt: skip
