"""Plain requests mean what the general code makes of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.proxy.checks import CallLimits
from kourou.proxy.pb import v2
from kourou.proxy.plain_requests import KEYS_BYTES_MAX, PlainRequest, Shapes, read_plain
from kourou.proxy.times import timestamp
from tests.fuzz.proxy_calls import plain_send, requests

NOW_MS = 1_795_228_890_123
ID = "01BACE0B9B6C4E3C0104C8D39900000001"


def message(**system: Any) -> v2.Message:
    terms = {"message_id": ID, "born_timestamp": timestamp(NOW_MS), "born_host": "host", **system}
    body, users = terms.pop("body", b"hello"), terms.pop("user_properties", {})
    return v2.Message(
        topic=v2.Resource(name="Orders"),
        user_properties=users,
        system_properties=v2.SystemProperties(**terms),
        body=body,
    )


def encoded(*messages: v2.Message) -> bytes:
    return v2.SendMessageRequest(messages=messages).SerializeToString()


def read(**system: Any) -> PlainRequest | None:
    return read_plain(encoded(message(**system)))


def has_shape(**system: Any) -> bool:
    plain = read(**system)
    return plain is not None and Shapes(CallLimits()).get(plain, "10.0.0.1") is not None


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"tag": "a"},
        {"keys": ["k1", "order-2"]},
        {"user_properties": {"a": "1", "é": '"%d"'}, "tag": "100 %"},
        {"born_host": ""},
        {"body_digest": v2.Digest(type=v2.DigestType.CRC32, checksum="0AF3")},
        {"message_type": v2.MessageType.NORMAL, "body_encoding": v2.Encoding.IDENTITY},
        {"body": b"x" * 70_000},
        {"message_group": "group of orders"},
    ],
)
def test_usual_messages_are_plain(terms: dict[str, Any]) -> None:
    assert has_shape(**terms)
    plain_send(encoded(message(**terms)))


@pytest.mark.parametrize(
    "terms",
    [
        {"delivery_timestamp": timestamp(NOW_MS + 1_000)},
        {"message_type": v2.MessageType.TRANSACTION},
        {"priority": 3},
        {"body_encoding": v2.Encoding.GZIP},
        {"tag": "a|b"},
        {"user_properties": {"KEYS": "reserved"}},
        {"user_properties": {str(number): "v" for number in range(129)}},
        {"user_properties": {"a": "x" * 20_000}},
        {"delivery_attempt": 2},
        {"message_id": "not plain"},
        {"message_id": ""},
        {"keys": ['quoted"']},
        {"keys": ["x" * (KEYS_BYTES_MAX + 1)]},
        {"body": b""},
        {"message_group": "g" * 64},
        {"message_group": "g", "lite_topic": "l"},
        {"born_timestamp": None},
    ],
)
def test_all_other_messages_are_left_to_the_general_code(terms: dict[str, Any]) -> None:
    assert not has_shape(**terms)


def test_several_messages_in_one_request_are_left_to_the_general_code() -> None:
    assert read_plain(encoded(message(), message())) is None
    assert read_plain(b"") is None


@given(st.data())
def test_properties_are_those_of_the_general_code(data: st.DataObject) -> None:
    text = st.text(max_size=8)
    terms = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "message_id": st.text("0123456789ABCDEF", min_size=1, max_size=200),
                "keys": st.lists(text, max_size=3),
                "tag": text,
                "message_group": text,
                "born_host": text,
                "user_properties": st.dictionaries(text, text, max_size=3),
                "body": st.binary(max_size=300),
                "born_timestamp": st.builds(
                    timestamp, st.integers(min_value=-1, max_value=1 << 45)
                ),
                "queue_id": st.integers(min_value=0, max_value=300),
                "trace_context": text,
                "message_type": st.sampled_from(list(v2.MessageType)),
                "body_digest": st.builds(v2.Digest, checksum=text),
            },
        )
    )
    plain_send(encoded(message(**terms)))


@given(st.sampled_from([one for one in requests("SendMessage") if one]), st.data())
def test_changed_bytes_are_read_as_the_general_code_reads_them(
    request: bytes, data: st.DataObject
) -> None:
    changed = bytearray(request)
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    plain_send(bytes(changed))


def test_long_born_times_are_not_kept_in_memory() -> None:
    more = b"\x1a\xa0\x8d\x06" + bytes(100_000)  # a field that timestamps do not have
    tracemalloc.start()
    try:
        for number in range(64):
            born = timestamp((NOW_MS // 1_000 + number) * 1_000)  # without nanoseconds
            born.MergeFromString(more)
            assert read(born_timestamp=born) is None
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_shapes_that_are_used_are_kept_while_others_are_dropped() -> None:
    shapes = Shapes(CallLimits())
    used = read()
    assert used is not None
    found = shapes.get(used, "10.0.0.1")
    for number in range(3_000):
        assert shapes.get(used, f"10.0.0.{number}") is not None
        assert shapes.get(used, "10.0.0.1") == found
    assert shapes.count <= 2 * 1024 + 1
