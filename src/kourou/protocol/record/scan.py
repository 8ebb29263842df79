"""Scans of log bytes: verified and unverified records, and the next record after damage.

An ordinary record has the first version's layout, two IPv4 hosts, its own position and a matching
checksum, and is complete. The loop ends at any other bytes without a verdict: the caller must read
them with `kourou.protocol.record.read.read_checked`, which handles all records. The loop takes 2 us
a record, `read_checked` 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kourou.decimals import is_decimal
from kourou.protocol.hashing import crc32
from kourou.protocol.record.layout import (
    BLANK_BYTES,
    HEAD_BYTES,
    HEAD_BYTES_MAX,
    HEAD_FIELDS,
    HEADS,
    HOST_FLAGS,
    MAGIC_BLANK,
    MAGIC_V1,
    PAIR_END,
    POSITION,
    PROPERTIES_SIZE,
    PROPERTIES_SIZE_BYTES,
    RECORD_MAGICS,
    RECORD_START,
    SEAL_BYTES,
    SEAL_DIGITS,
    SEAL_START,
    SIZE_BYTES,
    TAIL_BYTES_MAX,
    TAIL_BYTES_V1,
    TOPIC_SIZE_V1_MAX,
    TOPIC_SIZE_V2,
    head_struct,
)

_HEAD: Final = head_struct(
    "total_size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag",
    "store_at_ms", "body_size",
).unpack_from  # fmt: skip
_KEY_HEAD: Final = head_struct(
    "total_size", "magic", "physical_offset", "sys_flag", "store_at_ms", "body_size"
).unpack_from
"""The fields of a head with two IPv4 hosts from which the key index reads a record."""
_PROPERTIES_SIZE: Final = PROPERTIES_SIZE.unpack_from
_RECORD_TAIL_BYTES_MIN: Final = TAIL_BYTES_V1 + 1
"""The size fields of topic and properties, and a topic of one byte."""
LOG_HEAD: Final = head_struct(
    "total_size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag"
)
"""The start of every record, as far as its hosts."""
_SEAL_VALUE_BYTES: Final = SEAL_DIGITS + len(PAIR_END)
_BLANK_MAGIC: Final = MAGIC_BLANK.to_bytes(4, "big", signed=True)
_RECORD_MAGIC: Final = MAGIC_V1.to_bytes(4, "big", signed=True)[:3]
"""The first bytes of both versions' magic."""
_FIND_MAGICS: Final = re.compile(re.escape(_RECORD_MAGIC) + b"|" + re.escape(_BLANK_MAGIC)).finditer
MAGIC_BYTES: Final = len(_BLANK_MAGIC)


class ScannedRecord(NamedTuple):
    """The fields of a record that recovery needs; `ordinary_records` yields them as plain tuples.

    Attributes:
        topic: the name in UTF-8.
        properties: the encoded properties.
    """

    position: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_at_ms: int
    topic: bytes
    properties: bytes


Fields = tuple[int, int, int, int, int, int, bytes, bytes]
"""The fields of a `ScannedRecord`."""


def ordinary_records(buffer: bytes, at: int, position: int, segment_end: int) -> Iterator[Fields]:
    """Yield the verified records from byte `at` of the buffer, up to the first unordinary one.

    Args:
        buffer: bytes of one segment.
        at: the byte of the buffer at which the first record begins.
        position: the position of that byte in the log.
        segment_end: the end of the segment in the log; a blank must fit after each record.
    """
    view, seal_start = memoryview(buffer), SEAL_START
    end_max = min(len(buffer), segment_end - BLANK_BYTES - position + at)
    while at + HEAD_BYTES < end_max:
        size, magic, body_crc, queue_id, queue_offset, own, flags, store_at_ms, body_size = _HEAD(
            buffer, at
        )
        body_end = at + HEAD_BYTES + body_size
        end = at + size
        if (
            magic != MAGIC_V1
            or own != position
            or flags & HOST_FLAGS
            or end > end_max
            or not at + HEAD_BYTES <= body_end < end - PROPERTIES_SIZE_BYTES
        ):
            return
        topic_end = body_end + 1 + buffer[body_end]
        properties_at = topic_end + PROPERTIES_SIZE_BYTES
        properties = buffer[properties_at:end]
        size_field = buffer[topic_end:properties_at]
        topic = buffer[body_end + 1 : topic_end]
        if (
            properties_at > end
            or int.from_bytes(size_field, "big") != len(properties)
            or len(topic) > TOPIC_SIZE_V1_MAX
            or not topic.isascii()  # other topics may be invalid UTF-8
        ):
            return
        seal_at = end - SEAL_BYTES
        if properties[-SEAL_BYTES:-_SEAL_VALUE_BYTES] == seal_start:
            digits = b"%010d" % crc32(view[at:seal_at])
            if properties[-_SEAL_VALUE_BYTES:] != digits[::-1] + PAIR_END:
                return
        elif not _is_unsealed(properties) or crc32(view[at + HEAD_BYTES : body_end]) != body_crc:
            return
        yield (
            position,
            size,
            queue_id,
            queue_offset,
            flags,
            store_at_ms,
            topic,
            properties,
        )
        at = end
        position += size


def _is_unsealed(properties: bytes) -> bool:
    """Tell whether the properties certainly contain neither a seal nor the rest of one."""
    if not properties:
        return True
    return (
        properties.endswith(PAIR_END)
        and not is_decimal(properties[-_SEAL_VALUE_BYTES:-1])
        and (len(properties) < SEAL_BYTES or properties[-SEAL_BYTES] != 0)
    )


def split_records(data: bytes) -> Iterator[bytes]:
    """Yield consecutive verified records one by one."""
    at = 0
    while at < len(data):
        size = RECORD_START.unpack_from(data, at)[0]
        yield data[at : at + size]
        at += size


# Unverified records


class LogRecord(NamedTuple):
    """An unverified record: its position, and the fields from which its keys are read."""

    start: int
    size: int
    sys_flag: int
    store_at_ms: int
    topic: bytes
    properties: bytes


def append_unverified(
    chunk: bytes, at: int, chunk_start: int, end: int, records_max: int, found: list[LogRecord]
) -> int:
    """Append complete version 1 records with IPv4 hosts to `found`; return where the next begins.

    Stops at the first other record, which is left to `parse_unverified`, and accepts no record that
    this would refuse. One loop without calls per record, because it runs for each message.
    """
    new = tuple.__new__  # LogRecord's own constructor takes twice as long
    last = end - HEAD_BYTES
    while at <= last and len(found) < records_max:
        size, magic, offset, sys_flag, store_at_ms, body_size = _KEY_HEAD(chunk, at)
        next_at = at + size
        topic_at = at + HEAD_BYTES + body_size
        if (
            magic != MAGIC_V1
            or offset != chunk_start + at
            or sys_flag & HOST_FLAGS
            or not at < topic_at <= next_at - _RECORD_TAIL_BYTES_MIN
            or next_at > end
        ):
            break
        topic_at += 1
        topic_end = topic_at + chunk[topic_at - 1]
        properties_at = topic_end + PROPERTIES_SIZE_BYTES
        if (
            topic_end == topic_at
            or properties_at > next_at
            or _PROPERTIES_SIZE(chunk, topic_end)[0] != next_at - properties_at
        ):
            break
        topic, properties = chunk[topic_at:topic_end], chunk[properties_at:next_at]
        found.append(new(LogRecord, (offset, size, sys_flag, store_at_ms, topic, properties)))
        at = next_at
    return at


_DAMAGE: Final = LogRecord(0, 0, 0, 0, b"", b"")


def parse_unverified(
    chunk: bytes, at: int, chunk_start: int, limit: int, segment_end: int
) -> LogRecord | None:
    """Return the record at a byte of the chunk; None if the chunk ends before the record does.

    A blank is returned as a record without a topic, damage as one of size 0.
    """
    if at + HEAD_BYTES > len(chunk):
        size, magic = RECORD_START.unpack_from(chunk, at)
        is_record = magic in RECORD_MAGICS and HEAD_BYTES < size <= limit - at
        return None if is_record else _blank(chunk_start + at, size, magic, segment_end - at)
    size, magic, offset, sys_flag, store_at_ms, body_size = _KEY_HEAD(chunk, at)
    if magic not in RECORD_MAGICS:
        return _blank(chunk_start + at, size, magic, segment_end - at)
    if offset != chunk_start + at or not HEAD_BYTES < size <= limit - at:
        return _DAMAGE
    end = at + size
    if end > len(chunk):
        # A damaged size may claim a whole segment: do not read that much to find out.
        is_likely = sys_flag & HOST_FLAGS or 0 < size - HEAD_BYTES - body_size <= TAIL_BYTES_MAX
        return None if is_likely else _DAMAGE
    topic_at = at + HEAD_BYTES + body_size
    if sys_flag & HOST_FLAGS:
        store_at_ms, topic_at = _v6_fields(chunk, at, sys_flag)
    if not at < topic_at <= end - _RECORD_TAIL_BYTES_MIN:
        return _DAMAGE
    if magic == MAGIC_V1:
        topic_size, topic_at = chunk[topic_at], topic_at + 1
    else:
        topic_size, topic_at = (
            TOPIC_SIZE_V2.unpack_from(chunk, topic_at)[0],
            topic_at + TOPIC_SIZE_V2.size,
        )
    topic_end = topic_at + topic_size
    if (
        topic_size <= 0
        or topic_end > end - PROPERTIES_SIZE_BYTES
        or _PROPERTIES_SIZE(chunk, topic_end)[0] != end - topic_end - PROPERTIES_SIZE_BYTES
    ):
        return _DAMAGE
    fields = (offset, size, sys_flag, store_at_ms, chunk[topic_at:topic_end])
    # LogRecord's own constructor takes twice as long, and runs for each message.
    return tuple.__new__(LogRecord, (*fields, chunk[topic_end + PROPERTIES_SIZE_BYTES : end]))


def _blank(position: int, size: int, magic: int, left: int) -> LogRecord:
    """Return the blank that fills the segment to its end, or damage if it is none."""
    if magic == MAGIC_BLANK and size == left:
        return LogRecord(position, size, 0, 0, b"", b"")
    return _DAMAGE


def _v6_fields(chunk: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    """Return the store time and the start of the topic of a record with an IPv6 host."""
    head = HEADS[sys_flag & HOST_FLAGS]
    if at + HEAD_BYTES_MAX > len(chunk):
        return 0, 0  # its size is smaller than its own head: damage
    fields = dict(zip(HEAD_FIELDS, head.unpack_from(chunk, at), strict=True))
    return fields["store_at_ms"], at + head.size + fields["body_size"]


def store_time(head: bytes, position: int) -> int | None:
    """Return the store time of the record at a position; None if it is not a record.

    `head` is its first `HEAD_BYTES_MAX` bytes.
    """
    _, magic, own_position, sys_flag, store_at_ms, _ = _KEY_HEAD(head, 0)
    if magic not in RECORD_MAGICS or own_position != position:
        return None
    return int(_v6_fields(head, 0, sys_flag)[0] if sys_flag & HOST_FLAGS else store_at_ms)


# The next record after damage


def candidates(data: bytes, position: int) -> Iterator[int]:
    """Yield the positions of possible records and blanks.

    Each has a magic, and a record its own position, as far as the data contains it: the first one
    may begin before the data, at a magic at its start. The caller must verify them.

    Args:
        data: bytes of one segment.
        position: the position of its first byte in the log.
    """
    for magic in _FIND_MAGICS(data):
        at = magic.start() - SIZE_BYTES
        is_elsewhere = (
            magic.group() != _BLANK_MAGIC
            and at >= 0
            and len(data) - at >= POSITION.size
            and POSITION.unpack_from(data, at)[0] != position + at
        )
        if not is_elsewhere:
            yield position + at


def may_be_record(fields: tuple[int, ...], position: int, segment_end: int) -> bool:
    """Tell whether fields of `LOG_HEAD` may be those of a record at this position of the log."""
    size, magic, _, _, own_position, _ = fields
    return (
        magic in RECORD_MAGICS
        and own_position == position
        and LOG_HEAD.size <= size <= segment_end - position - BLANK_BYTES
    )


def is_start(chunk: bytes, at: int, segment_end: int) -> bool:
    """Tell whether a candidate has a record's magic, or is a blank up to the segment's end.

    Args:
        chunk: bytes of one segment.
        at: the byte of the chunk at which it begins.
        segment_end: the end of the segment, relative to the chunk.
    """
    size, magic = RECORD_START.unpack_from(chunk, at)
    return magic in RECORD_MAGICS or (magic == MAGIC_BLANK and size == segment_end - at)
