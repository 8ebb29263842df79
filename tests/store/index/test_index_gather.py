"""Gathered entries equal those of records that are parsed property by property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.model.host import Host
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.store.index import index_gather, index_keys
from kourou.store.index.index_feed import SLICE_MAX
from kourou.store.index.index_gather import ENTRIES_MAX, KeyGatherer
from kourou.store.index.index_log import LogCursor
from kourou.store.log.commitlog import CommitLog
from kourou.testing.disk import SimDisk
from tests.store.rig import draft

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


def java_hash(text: str) -> int:
    value = abs(java_string_hash(text))
    return 0 if value == 2**31 else value


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


def gathered(log: CommitLog, gatherer: KeyGatherer) -> tuple[list[Entry], int]:
    """Return the entries of the whole log, and the largest number gathered at once."""
    cursor, found, longest = LogCursor(log, 0), list[Entry](), 0
    while cursor.position < log.written_position:
        cursor.read(log.written_position, may_block=True)
        columns = gatherer.gather(cursor, log.written_position)
        found += zip(columns.hashes, columns.offsets, columns.times, strict=True)
        longest = max(longest, len(columns.offsets))
    return found, longest


@settings(max_examples=60)
@given(st.lists(DRAFTS, min_size=1, max_size=8), st.integers(1, 8))
def test_gathered_entries_equal_javas(records: list[RecordDraft], repeated: int) -> None:
    log, expected = written(records + records[:repeated])
    gatherer = KeyGatherer()
    for _ in range(2):  # the second time with cached forms
        assert gathered(log, gatherer)[0] == expected


def usual(number: int, *, key: str = "", tag: str = "TagA") -> RecordDraft:
    keys = f"KEYS\x01{key}\x02" if key else ""
    text = f"UNIQ_KEY\x010A00000712671000006300{number:010}\x02{keys}TAGS\x01{tag}\x02"
    return record_of("Orders", text.encode())


@pytest.mark.parametrize("odd", ["a 23456789", "ü23456789", "a\x02KEYS\x01bc", "ab\x02TAGS\x01c"])
def test_a_record_that_only_resembles_a_known_form_is_parsed_correctly(odd: str) -> None:
    log, expected = written(
        [usual(number, key=key) for number, key in enumerate(["k-" * 5] * 5 + [odd])]
    )
    gatherer = KeyGatherer()
    for _ in range(2):
        assert gathered(log, gatherer)[0] == expected


def test_the_cached_head_of_an_id_with_a_blank_is_not_used_for_keys() -> None:
    records = [usual(number, key="some-12345678") for number in range(3)]
    records.append(record_of("Orders", b"UNIQ_KEY\x01so e-12345678\x02"))
    records.append(usual(9, key="so e-12345678"))
    log, expected = written(records)
    gatherer = KeyGatherer()
    for _ in range(2):
        assert gathered(log, gatherer)[0] == expected


def test_the_number_of_entries_gathered_at_once_is_limited() -> None:
    many = " ".join(f"key-{number}" for number in range(ENTRIES_MAX // 2))
    short, few = written([usual(number) for number in range(SLICE_MAX + 9)], 1 << 18)
    long, more = written([usual(number, key=many) for number in range(6)], 1 << 18)
    assert gathered(short, KeyGatherer()) == (few, 2 * SLICE_MAX)
    entries, longest = gathered(long, KeyGatherer())
    assert entries == more
    assert longest <= ENTRIES_MAX + ENTRIES_MAX // 2 + 2


def test_cached_forms_are_dropped_at_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_gather, "_FORMS_MAX", 20)
    monkeypatch.setattr(index_keys, "_CACHED_MAX", 30)
    records = [usual(number * 10**8, tag=f"Tag{number % 70}") for number in range(99)]
    log, expected = written(records)
    gatherer = KeyGatherer()
    for _ in range(20):
        assert gathered(log, gatherer)[0] == expected


def test_forms_are_suspended_for_a_while_if_all_records_differ() -> None:
    different = [record_of("Orders", f"x\x01{'x' * number}\x02".encode()) for number in range(300)]
    log, expected = written(different + [usual(number) for number in range(300)], 1 << 18)
    gatherer, cursor, found, plain = KeyGatherer(), LogCursor(log, 0), list[Entry](), list[bool]()
    while cursor.position < log.written_position:
        cursor.read(log.written_position, may_block=True)
        plain.append(gatherer._plain_left > 0)
        columns = gatherer.gather(cursor, log.written_position, 64)
        found += zip(columns.hashes, columns.offsets, columns.times, strict=True)
    assert found == expected
    assert plain == [False, *[True] * 4, False, *[False] * (len(plain) - 6)]
    assert len(plain) > 8
