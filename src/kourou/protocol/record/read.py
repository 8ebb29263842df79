"""Reads one record and verifies its sizes, its body's checksum and its seal.

Records without a seal are read as well. A record is corrupt, not unsealed, if it ends in zeros, in
the rest of a seal whose beginning is zeros, or in a seal whose name has one flipped bit.

Source: MessageDecoder.decode, CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from typing import Final

from kourou.errors import MalformedMessageError
from kourou.protocol.hashing import crc32
from kourou.protocol.record.layout import (
    HEAD_BYTES,
    HEADS,
    HOST_FLAGS,
    MAGIC_V1,
    PROPERTIES_SIZE,
    PROPERTIES_SIZE_BYTES,
    RECORD_MAGICS,
    SEAL,
    SEAL_BYTES,
    SEAL_DIGITS,
    SEAL_START,
    SYS_FLAG,
    TOPIC_SIZE_V2,
    Buffer,
    RecordHeader,
    encode_seal,
)

_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"0" * 9)
_PATTERN: Final = (SEAL % (b"0" * SEAL_DIGITS)).translate(_DIGITS_TO_ZERO)


def read_record(buffer: Buffer, at: int = 0, *, check_crc: bool) -> RecordHeader:
    """Return the fields of the record at byte `at`; bytes before and behind it are not read.

    With `check_crc`, the body's checksum is verified, which reads the whole body.

    Raises:
        MalformedMessageError: the record is truncated, its sizes contradict each other, its magic
            is not v1 or v2, its topic is not UTF-8, or the body's checksum differs. The text names
            the reason.
    """
    if len(buffer) - at < HEAD_BYTES:
        raise MalformedMessageError(f"record at byte {at} is truncated")
    head = HEADS[SYS_FLAG.unpack_from(buffer, at)[0] & HOST_FLAGS]
    if len(buffer) - at < head.size:
        raise MalformedMessageError(f"record at byte {at} is truncated")
    fields = head.unpack_from(buffer, at)
    total_size, magic, body_size = fields[0], fields[1], fields[-1]
    if magic not in RECORD_MAGICS:
        raise MalformedMessageError(f"record at byte {at}: magic {magic & 0xFFFF_FFFF:#x}")
    # The bytes left for the three variable parts and two size fields, according to the total size.
    end = at + total_size
    topic_size_bytes = 1 if magic == MAGIC_V1 else TOPIC_SIZE_V2.size
    body_start = at + head.size
    body_end = body_start + body_size
    topic_start = body_end + topic_size_bytes
    if end > len(buffer) or body_size < 0 or topic_start + PROPERTIES_SIZE_BYTES > end:
        raise _size_error(at, f"total {total_size}, body {body_size}, of {len(buffer) - at} left")
    topic_size = int.from_bytes(buffer[body_end:topic_start], "big", signed=True)
    topic_end = topic_start + topic_size
    if topic_size < 0 or topic_end + PROPERTIES_SIZE_BYTES > end:
        raise _size_error(at, f"total {total_size}, body {body_size}, topic {topic_size}")
    properties_size = PROPERTIES_SIZE.unpack_from(buffer, topic_end)[0]
    properties_start = topic_end + PROPERTIES_SIZE_BYTES
    if properties_size < 0 or properties_start + properties_size != end:
        raise _size_error(at, f"total {total_size}, properties {properties_size}")
    try:
        topic = str(buffer[topic_start:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessageError(f"record at byte {at}: the topic is not UTF-8") from None
    if check_crc and crc32(memoryview(buffer)[body_start:body_end]) != fields[2]:
        raise MalformedMessageError(f"record at byte {at}: the body's checksum differs")
    return RecordHeader._make(
        (*fields[:-1], topic, body_start, body_size, properties_start, properties_size)
    )


def _size_error(at: int, sizes: str) -> MalformedMessageError:
    return MalformedMessageError(f"record at byte {at}: sizes do not fit: {sizes}")


def read_checked(buffer: Buffer, at: int) -> RecordHeader:
    """Return the header of the record at byte `at`; verifies the body's checksum and the seal.

    Raises:
        MalformedMessageError: the record is corrupt.
    """
    header = read_record(buffer, at, check_crc=True)
    end = at + header.total_size
    if header.properties_size >= SEAL_BYTES:
        seal_at = end - SEAL_BYTES
        if buffer[seal_at : seal_at + len(SEAL_START)] == SEAL_START:
            if buffer[seal_at:end] != encode_seal(crc32(memoryview(buffer)[at:seal_at])):
                raise MalformedMessageError(f"record at byte {at}: its checksum property differs")
            return header
        tail = bytes(buffer[seal_at:end])
        if _is_rest_of_seal(tail):
            raise MalformedMessageError(f"record at byte {at}: its checksum property is torn")
        if _is_flipped_seal(tail):
            raise MalformedMessageError(f"record at byte {at}: its checksum property is damaged")
    if header.properties_size and not buffer[end - 1]:
        raise MalformedMessageError(f"record at byte {at}: the properties end in zeros")
    return header


def _is_rest_of_seal(tail: bytes) -> bool:
    """Tell whether the beginning of a seal is zeros, because a sector boundary lies within it."""
    if tail[0]:
        return False
    rest = tail.lstrip(b"\0").translate(_DIGITS_TO_ZERO)
    return bool(rest) and _PATTERN.endswith(rest)


def _is_flipped_seal(tail: bytes) -> bool:
    """Tell whether one bit of a seal's name is flipped, so that it looks like another property."""
    start, rest = tail[: len(SEAL_START)], tail[len(SEAL_START) :].translate(_DIGITS_TO_ZERO)
    if not _PATTERN.endswith(rest):
        return False
    return (int.from_bytes(start, "big") ^ int.from_bytes(SEAL_START, "big")).bit_count() == 1
