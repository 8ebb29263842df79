"""Scans of log bytes: verified records in one loop, and the next record after damage.

An ordinary record has the first version's layout, two IPv4 hosts, its own position and a matching
checksum, and is complete. The loop ends at any other bytes without a verdict: the caller must read
them with `kourou.protocol.record.read.read_checked`, which handles all records. The loop takes 2 us
a record, `read_checked` 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kourou.protocol.hashing import crc32
from kourou.protocol.record.layout import (
    BLANK_BYTES,
    HEAD_BYTES,
    HOST_FLAGS,
    MAGIC_BLANK,
    MAGIC_V1,
    PAIR_END,
    POSITION,
    PROPERTIES_SIZE_BYTES,
    RECORD_MAGICS,
    SEAL_BYTES,
    SEAL_DIGITS,
    SEAL_START,
    SIZE_BYTES,
    TOPIC_SIZE_V1_MAX,
    head_struct,
)

_HEAD: Final = head_struct(
    "total_size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag",
    "store_at_ms", "body_size",
).unpack_from  # fmt: skip
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
        and not properties[-_SEAL_VALUE_BYTES:-1].isdigit()
        and (len(properties) < SEAL_BYTES or properties[-SEAL_BYTES] != 0)
    )


# The next record after damage ----------------------------------------------------------------


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
