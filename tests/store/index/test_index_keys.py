"""Entries of records have the hashes of Java's, for short, long and non-ASCII keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kourou.model.host import Host
from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.protocol.record.scan import LogRecord
from kourou.store.index import index_keys
from kourou.store.index.index_feed import SLICE_MAX
from kourou.store.index.index_keys import (
    ENTRIES_MAX,
    KeyHashes,
    KeyKind,
    has_key,
    is_indexed,
    key_hash,
)
from kourou.store.index.index_log import LogCursor
from kourou.store.log.commitlog import CommitLog
from kourou.testing.disk import SimDisk
from tests.store.rig import draft

TEXT = st.text(
    st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]),
    min_size=1,
    max_size=280,
)


def java_hash(text: str) -> int:
    value = abs(java_string_hash(text))
    return 0 if value == 2**31 else value


def record_with(topic: str, properties: bytes) -> LogRecord:
    return LogRecord(0, 0, 0, 0, topic.encode(), properties)


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
        assert hashes.of_record(record_with(topic, properties)) == expected
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
    assert len(KeyHashes().of_record(record_with("T", properties))) == count


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


SEGMENT_BYTES = 16 * 1024
START_MS = 1_700_000_000_000
Entry = tuple[int, int, int]

IDS = st.one_of(
    st.integers(0, 99).map(lambda number: f"0A0000071267100000630001E240{number:04}"),
    st.sampled_from(
        ["", "short", "12345678", "blank in it, long", "blank 12345678", "K-Ünïcode-12"]
    ),
)
KEYS = st.one_of(
    st.integers(0, 99).map(lambda number: f"order-{number}"),
    st.integers(0, 99).map(lambda number: f"blank-{number:08}"),
    st.sampled_from(
        ["", "k", "a b", " a  b ", "blank 12345678", "schlüssel-123", "k\x01v", "1234567"]
    ),
)
SEALS = st.sampled_from(["0123456789", "9876543210", "\x02KEYS\x01abcd", "short", ""])
PROPERTIES = st.lists(
    st.one_of(
        st.tuples(st.just("UNIQ_KEY"), IDS),
        st.tuples(st.just("KEYS"), KEYS),
        st.tuples(st.just("TAGS"), st.sampled_from(["TagA", "TagB", "", "täg"])),
        st.tuples(st.sampled_from(["WAIT", "XKEYS"]), st.sampled_from(["true", "KEYS"])),
        st.tuples(st.just("__CRC32#"), SEALS),
    ),
    max_size=6,
)
USUAL = st.tuples(IDS, KEYS, SEALS, st.sampled_from(["TagA", "TagB"]), st.booleans()).map(
    lambda drawn: [
        *(("UNIQ_KEY", drawn[0]), ("KEYS", drawn[1]))[:: 1 if drawn[4] else -1],
        ("TAGS", drawn[3]),
        ("__CRC32#", drawn[2]),
    ]
)
HOSTS = st.sampled_from([("10.0.0.7", 1), ("10.0.0.7", 1), ("10.0.0.7", 1), ("::1", 1)])
FLAGS = st.sampled_from([0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])


def record_of(
    topic: str, properties: bytes, host: Host = ("10.0.0.7", 1), sys_flag: int = 0
) -> RecordDraft:
    made = draft(b"x" * 10, topic=topic, sys_flag=sys_flag)
    return replace(made, properties=properties, born_host=host)


DRAFTS = st.builds(
    lambda topic, properties, host, flag, ending: record_of(
        topic,
        "\x02".join(f"{name}\x01{value}" for name, value in properties).encode() + ending,
        host,
        flag,
    ),
    st.sampled_from(["T", "Orders", "Ördërs", "Others"]),
    st.one_of(USUAL, PROPERTIES),
    HOSTS,
    FLAGS,
    st.sampled_from([b"\x02", b"\x02", b""]),
)


def expected_entries(record: RecordDraft, position: int, store_at_ms: int) -> list[Entry]:
    """Return the entries that Java creates, one property after the other."""
    if record.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
        return []
    values = {}
    for text in record.properties.split(b"\x02"):
        name, _, value = text.partition(b"\x01")
        if value:
            values[name] = value.decode()
    topic = record.topic.decode()
    keys = [values.get(b"UNIQ_KEY", ""), *values.get(b"KEYS", "").split(" ")]
    hashes = [java_hash(f"{topic}#{key}") for key in keys if key]
    if b"TAGS" in values:
        hashes.append(java_hash(f"{topic}#T#{values[b'TAGS']}"))
    return [(key_hash, position, store_at_ms) for key_hash in hashes]


def written(
    records: list[RecordDraft], segment_bytes: int = SEGMENT_BYTES
) -> tuple[CommitLog, list[Entry]]:
    """Return a log with the records, and the expected index entries."""
    disk = SimDisk()
    disk.make_directory("commitlog")
    log, expected = CommitLog(disk, segment_bytes), list[Entry]()
    log.start_at(0)
    for number, record in enumerate(records):
        store_at_ms = START_MS + number
        position = log.position_for(len(encode_record(record, number, 0, store_at_ms)))
        log.add(position, encode_record(record, number, position, store_at_ms))
        expected += expected_entries(record, position, store_at_ms)
    log.write()
    return log, expected


def indexed(log: CommitLog, hashes: KeyHashes) -> tuple[list[Entry], int]:
    """Return the entries of the whole log, and the largest number hashed at once."""
    cursor, found, longest = LogCursor(log, 0), list[Entry](), 0
    while cursor.position < log.written_position:
        cursor.read(log.written_position, may_block=True)
        records = cursor.next_records(log.written_position, SLICE_MAX)
        entries, number = hashes.of_records(records)
        if number < len(records):
            cursor.seek(records[number].start)
        found += zip(*entries[:3], strict=True)
        longest = max(longest, len(entries.hashes))
    return found, longest


@settings(max_examples=60)
@given(st.lists(DRAFTS, min_size=1, max_size=8), st.integers(1, 8))
@example([record_of("T", b"KEYS\x01order-0\x02UNIQ_KEY\x01\x02TAGS\x01TagA\x02")], 1)
def test_entries_of_a_log_equal_javas(records: list[RecordDraft], repeated: int) -> None:
    log, expected = written(records + records[:repeated])
    hashes = KeyHashes()
    for _ in range(2):  # the second time from the caches
        assert indexed(log, hashes)[0] == expected


def usual(number: int, *, key: str = "", tag: str = "TagA") -> RecordDraft:
    keys = f"KEYS\x01{key}\x02" if key else ""
    text = f"UNIQ_KEY\x010A00000712671000006300{number:010}\x02{keys}TAGS\x01{tag}\x02"
    return record_of("Orders", text.encode())


@pytest.mark.parametrize("odd", ["a 23456789", "ü23456789", "a\x02KEYS\x01bc", "ab\x02TAGS\x01c"])
def test_a_record_that_only_resembles_a_known_form_is_parsed_correctly(odd: str) -> None:
    log, expected = written(
        [usual(number, key=key) for number, key in enumerate(["k-" * 5] * 5 + [odd])]
    )
    hashes = KeyHashes()
    for _ in range(2):
        assert indexed(log, hashes)[0] == expected


def test_the_number_of_entries_hashed_at_once_is_limited() -> None:
    many = " ".join(f"key-{number}" for number in range(ENTRIES_MAX // 2))
    short, few = written([usual(number) for number in range(SLICE_MAX + 9)], 1 << 18)
    long, more = written([usual(number, key=many) for number in range(6)], 1 << 18)
    assert indexed(short, KeyHashes()) == (few, 2 * SLICE_MAX)
    entries, longest = indexed(long, KeyHashes())
    assert entries == more
    assert longest <= ENTRIES_MAX + ENTRIES_MAX // 2 + 2


def test_records_of_equal_kinds_are_not_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [usual(number, key=f"k-{number % 3}") for number in range(40)]
    log, expected = written(records, 1 << 18)
    monkeypatch.setattr(index_keys, "_FIND_ALL", None)
    assert indexed(log, KeyHashes()) == (expected, 120)


@pytest.mark.parametrize("odd", [b"", b"\x01\x02", b"x", b"\x02\x02", b"\x02\x01\x02", b"\x01"])
def test_odd_separators_between_records_are_no_properties(odd: bytes) -> None:
    records = [usual(number, key="key") for number in range(4)]
    for at in range(4):
        some = records.copy()
        some[at] = replace(some[at], properties=odd + some[at].properties)
        some[at - 1] = replace(some[at - 1], properties=some[at - 1].properties + odd)
        log, expected = written(some)
        assert indexed(log, KeyHashes())[0] == expected


def test_properties_in_another_order_are_not_taken_for_each_other() -> None:
    unique_id = f"UNIQ_KEY\x01{7:032}\x02"
    texts = (f"{unique_id}KEYS\x01a\x02", f"KEYS\x01a\x02{unique_id}", f"KEYS\x01a\x02{unique_id}")
    log, expected = written([record_of("T", text.encode()) for text in texts])
    assert indexed(log, KeyHashes())[0] == expected


def test_the_caches_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_keys, "_CACHED_MAX", 20)
    records = [
        replace(usual(number * 10**8, tag=f"Tag{number % 70}"), topic=f"T{number}".encode())
        for number in range(99)
    ]
    log, expected = written(records)
    hashes = KeyHashes()
    for _ in range(3):
        assert indexed(log, hashes)[0] == expected
    for number, one in enumerate(records):
        properties = one.properties + (b"x" if number % 2 else b"")
        record = LogRecord(0, 0, 0, 0, one.topic, properties)
        assert hashes.of_record(record) == [entry[0] for entry in expected_entries(one, 0, 0)]
    assert hashes.cached_topics <= 20
