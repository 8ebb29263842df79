"""The fast scan accepts no record that the complete check refuses, and yields the same fields."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kourou.errors import MalformedMessageError
from kourou.model.properties import encode_properties
from kourou.protocol.record.encode import encode_record, encode_sealed
from kourou.protocol.record.read import read_checked
from kourou.protocol.record.scan import ScannedRecord, ordinary_records
from tests.store.rig import draft

SEGMENT_END = 1 << 20
PLAIN = draft(b"body" * 20, topic="orders", queue_id=3, properties={"TAGS": "a", "KEYS": "k"})
ENCODERS = [encode_sealed, encode_record]


def scan(data: bytes, position: int = 0, end: int = SEGMENT_END) -> list[ScannedRecord]:
    return [ScannedRecord._make(fields) for fields in ordinary_records(data, 0, position, end)]


@pytest.mark.parametrize("encode", ENCODERS)
def test_consecutive_records_are_yielded_with_the_fields_for_recovery(encode: object) -> None:
    assert callable(encode)
    first = encode(PLAIN, 5, 4096, 99)
    second = encode(replace(PLAIN, sys_flag=4, queue_id=0), 6, 4096 + len(first), 100)

    one, two = scan(first + second, 4096)
    header = read_checked(first, 0)
    assert one == (4096, len(first), 3, 5, 0, 99, b"orders", first[header.properties_start :])
    assert (two.position, two.sys_flag, two.queue_id) == (4096 + len(first), 4, 0)


@pytest.mark.parametrize("encode", ENCODERS)
def test_unordinary_bytes_end_the_loop(encode: object) -> None:
    assert callable(encode)
    record = encode(PLAIN, 0, 0, 1)
    for odd in (
        replace(PLAIN, born_host=("::1", 1)),
        replace(PLAIN, store_host=("::1", 1)),
        replace(PLAIN, topic=b"t" * 200),  # a record of version 2
    ):
        data = record + encode(odd, 1, len(record), 1)
        assert len(scan(data)) == 1
    assert scan(record, position=1) == []
    assert scan(record[:-1]) == []
    assert scan(record, end=len(record) + 7) == []  # no space for a blank
    assert scan(record, end=len(record) + 8) != [] or scan(record + bytes(9)) != []
    assert scan(bytes(300)) == []


@pytest.mark.parametrize("encode", ENCODERS)
def test_any_flipped_bit_is_detected_or_left_to_the_complete_check(encode: object) -> None:
    assert callable(encode)
    record = encode(PLAIN, 0, 0, 1)
    for bit in range(len(record) * 8):
        data = bytearray(record + bytes(100))
        data[bit // 8] ^= 1 << bit % 8
        for found in scan(bytes(data)):
            header = read_checked(bytes(data), 0)
            assert found.size == header.total_size
            assert (found.queue_id, found.queue_offset) == (header.queue_id, header.queue_offset)
            assert found.topic.decode() == header.topic


def test_any_flipped_bit_of_a_sealed_record_is_detected() -> None:
    record = encode_sealed(PLAIN, 0, 0, 1)
    for bit in range(len(record) * 8):
        data = bytearray(record + bytes(100))
        data[bit // 8] ^= 1 << bit % 8
        assert scan(bytes(data)) == []


@pytest.mark.parametrize("seed", range(100))
def test_mangled_records_are_only_accepted_if_the_complete_check_accepts_them(seed: int) -> None:
    dice = random.Random(seed)
    for encode in ENCODERS:
        properties = encode_properties({"A" * dice.randrange(1, 9): "b" * dice.randrange(1, 30)})
        one = replace(PLAIN, body=dice.randbytes(dice.randrange(60)), properties=properties)
        data = bytearray(encode(one, 0, 0, 1) + bytes(100))
        for _ in range(dice.randrange(1, 4)):
            start = dice.randrange(len(data))
            size = dice.randrange(12)
            data[start : start + size] = dice.choice((bytes(size), dice.randbytes(size)))
        try:
            read_checked(bytes(data), 0)
        except MalformedMessageError:
            assert scan(bytes(data)) == []
