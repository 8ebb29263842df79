"""The checksum property of a record has Java's format and covers the whole record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError, MalformedMessageError
from kourou.model.properties import decode_properties
from kourou.protocol.hashing import crc32
from kourou.protocol.record.decode import decode_message
from kourou.protocol.record.encode import encode_record, encode_sealed, sealed_size, unsealed
from kourou.protocol.record.layout import SEAL_BYTES, encode_seal, is_sealed, without_seal
from kourou.protocol.record.read import read_checked, read_record
from tests.store.rig import CONFIG, Rig, draft


@pytest.mark.parametrize(
    ("checksum", "text"),
    [
        # Written by MessageDecoder.createCrc32 of Apache RocketMQ 5.5.0.
        (0, b"__CRC32#\x010000000000\x02"),
        (1, b"__CRC32#\x011000000000\x02"),
        (1486039724, b"__CRC32#\x014279306841\x02"),
        (2147483647, b"__CRC32#\x017463847412\x02"),
    ],
)
def test_the_digits_have_javas_order(checksum: int, text: bytes) -> None:
    assert encode_seal(checksum) == text
    assert len(text) == SEAL_BYTES


@given(body=st.binary(max_size=50), note=st.text("abc", max_size=20), ends=st.booleans())
def test_a_sealed_record_is_the_unsealed_one_with_a_checksum(
    body: bytes, note: str, ends: bool
) -> None:
    message = draft(body, properties={"NOTE": note} if note else {"A": "b"})
    if not ends:
        message.properties = message.properties[:-1]  # like clients in other languages
    record = encode_sealed(message, 3, 5, 7)

    assert len(record) == sealed_size(message)
    assert record[-SEAL_BYTES:] == encode_seal(crc32(record[:-SEAL_BYTES]))
    plain = decode_message(encode_record(message, 3, 5, 7))
    sealed = decode_message(record)
    assert "__CRC32#" not in sealed.properties  # internal to the store, hidden from consumers
    assert replace(sealed, store_size=plain.store_size) == plain
    assert read_checked(record, 0).queue_offset == 3


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_damage_before_the_checksum_is_detected(at: int, flip: int) -> None:
    record = bytearray(encode_sealed(draft(b"hello", properties={"NOTE": "n" * 99}), 3, 5, 7))
    record[at % (len(record) - SEAL_BYTES)] ^= flip
    with pytest.raises(MalformedMessageError):
        read_checked(bytes(record), 0)


@given(start=st.integers(0, 400), size=st.integers(1, 200))
def test_zeros_in_place_of_any_part_are_detected(start: int, size: int) -> None:
    record = encode_sealed(draft(b"hello", properties={"NOTE": "n" * 300}), 3, 5, 7)
    start %= len(record)
    torn = record[:start] + bytes(len(record[start : start + size])) + record[start + size :]
    if torn == record:
        return
    with pytest.raises(MalformedMessageError):
        read_checked(torn, 0)


def test_an_unsealed_record_of_java_is_read() -> None:
    record = encode_record(draft(b"hello"), 3, 5, 7)

    assert read_checked(record, 0).queue_offset == 3


def test_unsealed_properties_that_end_in_zeros_are_corrupt() -> None:
    record = encode_record(draft(b"hello", properties={"NOTE": "n" * 99}), 3, 5, 7)
    with pytest.raises(MalformedMessageError, match="zeros"):
        read_checked(record[:-10] + bytes(10), 0)


@pytest.mark.parametrize(("more", "has_seal"), [(0, True), (1, False), (20, False)])
def test_properties_that_leave_no_room_for_the_seal_are_stored_without(
    more: int, *, has_seal: bool
) -> None:
    full = draft(properties={"KEYS": "k" * (32_767 - SEAL_BYTES - 6 + more)})

    record = encode_sealed(full, 0, 0, 0)

    header = read_checked(record, 0)
    assert is_sealed(record[header.properties_start :]) == has_seal
    assert without_seal(record[header.properties_start :]) == full.properties
    assert sealed_size(full) == len(record)


def test_properties_longer_than_a_record_holds_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match="32768 bytes"):
        encode_sealed(draft(properties={"KEYS": "k" * 32_762}), 0, 0, 0)


def test_a_seal_copied_from_another_record_is_removed() -> None:
    message = draft(properties={"A": "1", "__CRC32#": "0123456789", "TAGS": "a"})

    assert unsealed(message).properties == b"A\x011\x02TAGS\x01a\x02"
    plain = draft()
    assert unsealed(plain) is plain


def test_a_message_stored_again_has_one_seal(rig: Rig) -> None:
    record = rig.store.reader.read_record(rig.put(b"one").physical_offset)
    assert record is not None
    header = read_record(record, check_crc=True)
    again = draft(b"two", properties=decode_properties(record[header.properties_start :]))
    assert b"__CRC32#" in again.properties
    stored = rig.store.writer.append(again, rig.now_ms)
    rig.commit()

    second = rig.store.reader.read_record(stored.physical_offset)
    assert second is not None
    assert second.count(b"__CRC32#") == 1


def test_seals_can_be_disabled() -> None:
    rig = Rig(config=replace(CONFIG, append_property_crc=False))
    appended = rig.put(b"one")

    assert appended.size == len(encode_record(draft(b"one"), 0, 0, 0))
    assert rig.problems() == []


def test_one_flipped_bit_in_the_seal_itself_is_detected() -> None:
    record = encode_sealed(draft(b"hello", properties={"NOTE": "n"}), 3, 5, 7)
    for bit in range(8 * SEAL_BYTES):
        flipped = bytearray(record)
        flipped[len(record) - 1 - bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedMessageError):
            read_checked(bytes(flipped), 0)
