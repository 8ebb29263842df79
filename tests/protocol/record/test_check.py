"""A record passes the check only if it is the expected one, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.errors import MalformedMessageError
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.hashing import tags_code
from kourou.protocol.record.check import ExpectedRecord, RecordCheck
from kourou.protocol.record.encode import RecordDraft, encode_record, encode_sealed
from tests.store.rig import draft

CHECK = RecordCheck("T", 0, (1_000, 5_000))
TAG_A = tags_code("a")


def expected_of(record: bytes, *, code: int = TAG_A) -> ExpectedRecord:
    return ExpectedRecord(7, 4096, len(record), code)


def sealed(one: RecordDraft | None = None) -> bytes:
    return encode_sealed(one or draft(), 7, 4096, 1_000_000)


def passes(record: bytes, expected: ExpectedRecord, check: RecordCheck = CHECK) -> bool:
    """Tell whether the record passes, alone and among others."""
    among = check.first_wrong(bytes(3) + record, [ExpectedRecord(0, 0, 3, 0), expected])
    assert among is not None  # the first three bytes are not a record
    try:
        check.check(b"before" + record + b"behind", 6, expected)
    except MalformedMessageError:
        assert check.first_wrong(record, [expected]) is not None
        return False
    assert check.first_wrong(record, [expected]) is None
    return True


V6 = draft()
V6 = replace(V6, born_host=("::1", 40_000), store_host=("::1", 10_911))
LONG = replace(draft(), topic=b"x" * 200)


@pytest.mark.parametrize(
    ("one", "topic"), [(draft(), "T"), (V6, "T"), (LONG, "x" * 200)], ids=["v1", "v6 hosts", "v2"]
)
def test_a_sealed_record_passes_but_not_with_any_bit_changed(one: RecordDraft, topic: str) -> None:
    record, check = sealed(one), RecordCheck(topic, 0, (1_000,))
    expected = expected_of(record)
    assert passes(record, expected, check)
    for bit in range(len(record) * 8):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        assert not passes(bytes(changed), expected, check), f"bit {bit}"


def test_a_record_without_a_seal_passes_but_not_with_a_changed_body() -> None:
    record = encode_record(draft(), 7, 4096, 1_000_000)
    assert passes(record, expected_of(record))
    assert not passes(record.replace(b"hello", b"hallo"), expected_of(record))


@pytest.mark.parametrize("encode", [encode_sealed, encode_record])
def test_another_queues_record_does_not_pass(encode: type) -> None:
    expected = expected_of(encode(draft(), 7, 4096, 1_000_000))
    for other in (
        encode(draft(), 8, 4096, 1_000_000),
        encode(draft(), 7, 4097, 1_000_000),
        encode(draft(topic="U"), 7, 4096, 1_000_000),
        encode(draft(queue_id=1), 7, 4096, 1_000_000),
    ):
        assert not passes(other, expected)
    record = encode(draft(), 7, 4096, 1_000_000)
    assert not passes(record, expected._replace(size=expected.size - 1))
    assert not passes(record[:-1], expected)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TAGS": "a"}, TAG_A),
        ({"KEYS": "k", "TAGS": "a"}, TAG_A),
        ({"TAGS": "a", "MYTAGS": "b"}, TAG_A),
        ({"MYTAGS": "b"}, 0),
        ({"KEYS": "k"}, 0),
    ],
)
def test_an_entry_has_the_code_of_the_tag(properties: dict[str, str], code: int) -> None:
    record = sealed(draft(properties=properties))
    assert passes(record, expected_of(record, code=code))
    assert not passes(record, expected_of(record, code=code + 1))
    address = expected_of(record, code=-(1 << 63) + 5)
    assert passes(record, address, RecordCheck("T", 0, (1_000,), has_extension=True))
    assert not passes(record, address), "a flipped bit, where there are no extension units"


def test_an_entry_of_a_delayed_message_has_its_due_time() -> None:
    check = RecordCheck(SCHEDULE_TOPIC, 1, (1_000, 5_000))
    one = draft(topic=SCHEDULE_TOPIC, queue_id=1, properties={"DELAY": "2"})
    record = sealed(one)
    assert passes(record, expected_of(record, code=1_005_000), check)
    assert not passes(record, expected_of(record, code=1_001_000), check)


def test_a_record_passes_for_its_light_queues() -> None:
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%x,%LMQ%y", "INNER_MULTI_QUEUE_OFFSET": "7,9"}
    record = sealed(draft(properties=properties))
    expected = expected_of(record, code=0)
    assert passes(record, expected, RecordCheck("%LMQ%x", 0, (1_000,)))
    assert not passes(record, expected, RecordCheck("%LMQ%y", 0, (1_000,)))
    assert passes(record, expected._replace(queue_offset=9), RecordCheck("%LMQ%y", 0, (1_000,)))
    assert not passes(record, expected, RecordCheck("%LMQ%x", 1, (1_000,)))


def test_a_record_without_a_seal_whose_properties_are_not_utf8_does_not_pass() -> None:
    record = encode_record(draft(properties={"TAGS": "a", "note": "text"}), 7, 4096, 1_000_000)
    assert passes(record, expected_of(record))
    assert not passes(record.replace(b"text", b"\xf8ext"), expected_of(record))
