"""Hashes of keys equal Java's, for short, long and non-ASCII keys."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from kourou.protocol.hashing import java_string_hash
from kourou.store.index import index_keys
from kourou.store.index.index_keys import KeyHashes, KeyKind, has_key, is_indexed, key_hash

TEXT = st.text(
    st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]),
    min_size=1,
    max_size=280,
)


def java_hash(text: str) -> int:
    value = abs(java_string_hash(text))
    return 0 if value == 2**31 else value


@settings(max_examples=50)
@given(topic=TEXT, unique_id=TEXT, keys=st.lists(TEXT, min_size=1, max_size=4), tags=TEXT)
def test_each_key_of_a_record_has_javas_hash_in_javas_order(
    topic: str, unique_id: str, keys: list[str], tags: str
) -> None:
    properties = encode_properties(
        {"a": "b", "UNIQ_KEY": unique_id, "KEYS": " ".join(keys), "TAGS": tags, "c": "d"}
    )
    expected = [java_hash(f"{topic}#{key}") for key in (unique_id, *keys)]
    expected.append(java_hash(f"{topic}#T#{tags}"))
    hashes = KeyHashes()
    for _ in range(2):  # the second time from the cache
        assert hashes.of_record(topic.encode(), properties) == expected
    assert expected == [
        key_hash(topic, unique_id, KeyKind.UNIQUE_ID),
        *(key_hash(topic, key, KeyKind.KEY) for key in keys),
        key_hash(topic, tags, KeyKind.TAG),
    ]


def test_the_absolute_value_of_the_smallest_integer_is_0() -> None:
    assert java_string_hash("polygenelubricants") == -(2**31)
    # The text `topic#key` has the hash -2 ** 31.
    text = "T#abcdefg"
    rest = (-(2**31) - java_string_hash(text) * 31**7) % 2**32
    tail = ""
    for power in range(6, -1, -1):
        digit = min(rest // 31**power, 0xD7FF)
        rest -= digit * 31**power
        tail += chr(digit)
    assert java_string_hash(text + tail) == -(2**31)
    assert key_hash("T", f"abcdefg{tail}", KeyKind.KEY) == 0


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        (b"", 0),
        (b"UNIQ_KEY\x01\x02KEYS\x01\x02TAGS\x01\x02", 0),
        (b"KEYS\x01  a  b \x02", 2),
        (b"KEYS\x01a", 1),
        (b"XKEYS\x01a\x02", 0),
        (b"note\x01KEYS\x01a\x02", 0),
        (b"KEYS\x01a\x02KEYS\x01\x02", 1),
        (b"KEYS\x01a\x02KEYS\x01b c\x02", 2),
        (b"TAGS\x01a b\x02", 1),
    ],
)
def test_properties_are_read_as_java_reads_them(properties: bytes, count: int) -> None:
    assert len(KeyHashes().of_record(b"T", properties)) == count


def test_the_hash_cache_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_keys, "_CACHED_MAX", 100)
    hashes = KeyHashes()
    for number in range(1_500):
        key = f"{number:012}"
        properties = encode_properties({"KEYS": key, "TAGS": key})
        topic = f"T{number}" if number % 2 else "T"
        assert hashes.of_record(topic.encode(), properties) == [
            java_hash(f"{topic}#{key}"),
            java_hash(f"{topic}#T#{key}"),
        ]
    assert hashes.cache_resets >= 1_500 // 100


def test_rolled_back_records_are_not_indexed() -> None:
    indexed = [is_indexed(flag) for flag in (0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, 0x1)]
    assert indexed == [True] * 4
    assert not is_indexed(TRANSACTION_ROLLBACK)


def test_has_key_matches_exact_keys_only() -> None:
    properties = encode_properties({"UNIQ_KEY": "id", "KEYS": "a bc", "TAGS": "t u"})
    had = {
        (key, kind)
        for kind in KeyKind
        for key in (b"id", b"a", b"b", b"bc", b"a bc", b"t", b"t u", b"")
        if has_key(properties, key, kind)
    }
    assert had == {
        (b"id", KeyKind.UNIQUE_ID),
        (b"id", KeyKind.KEY),
        (b"a", KeyKind.KEY),
        (b"bc", KeyKind.KEY),
        (b"t u", KeyKind.TAG),
    }
