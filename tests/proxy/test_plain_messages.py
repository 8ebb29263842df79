"""Messages encoded field by field are those of the general conversion."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kourou.model import properties as names
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.codes import LanguageCode
from kourou.proxy.convert import received_message
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.plain_messages import encode_delivery
from tests.proxy.test_convert import MESSAGE

NOW_MS = 1_795_228_890_123
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9)


def assert_same(**changes: Any) -> None:
    message = dataclasses.replace(MESSAGE, **changes)
    encoded = encode_delivery(message, "handle", LanguageCode.GO, NOW_MS)
    expected = received_message(message, "handle", LanguageCode.GO, NOW_MS)
    assert parse(v2.ReceiveMessageResponse, encoded) == v2.ReceiveMessageResponse(message=expected)


@given(
    properties=st.dictionaries(
        st.one_of(st.sampled_from([*sorted(names.RESERVED), names.SHARDING_KEY]), texts),
        st.one_of(texts, st.sampled_from(["true", "12", "a b  c", " "])),
        max_size=6,
    ),
    topic=st.sampled_from(["T", "%RETRY%g", "space%T", "%RETRY%space%g", "é"]),
    body=st.binary(max_size=200),
    queue_id=st.integers(min_value=0, max_value=1 << 20),
    queue_offset=st.integers(min_value=0, max_value=1 << 62),
    born_at_ms=st.integers(min_value=-5, max_value=1 << 45),
    store_at_ms=st.integers(min_value=0, max_value=1 << 45),
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
