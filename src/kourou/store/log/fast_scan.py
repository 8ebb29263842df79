"""Fast scan of ordinary log records in one loop: 2 us a record, where `read_checked` takes 4.

An ordinary record has the first version's layout, two IPv4 hosts, its own position and a matching
checksum, and is complete. The loop ends at any other bytes without a verdict: the caller must read
them with `kourou.store.log.record_seal.read_checked`, which handles all records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kourou.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from kourou.protocol.hashing import crc32
from kourou.protocol.message_layout import MAGIC_V1, TOPIC_SIZE_V1_MAX
from kourou.store.formats import BLANK_BYTES
from kourou.store.log.record_seal import SEAL_BYTES, encode_seal

_HEAD: Final = struct.Struct(">iiii4xqqi16xq20xi").unpack_from
"""Size, magic, body CRC, queue id, queue offset, own position, sys flag, store time, body size."""
_HEAD_BYTES: Final = 88
_V6_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6
_SEAL_END: Final = b"\x02"
_SEAL_START: Final = encode_seal(0)[:-11]


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
    view, seal_start = memoryview(buffer), _SEAL_START
    end_max = min(len(buffer), segment_end - BLANK_BYTES - position + at)
    while at + _HEAD_BYTES < end_max:
        size, magic, body_crc, queue_id, queue_offset, own, flags, store_at_ms, body_size = _HEAD(
            buffer, at
        )
        body_end = at + _HEAD_BYTES + body_size
        end = at + size
        if (
            magic != MAGIC_V1
            or own != position
            or flags & _V6_HOSTS
            or end > end_max
            or not at + _HEAD_BYTES <= body_end < end - 2
        ):
            return
        topic_end = body_end + 1 + buffer[body_end]
        properties_at = topic_end + 2
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
        if properties[-SEAL_BYTES:-11] == seal_start:
            digits = b"%010d" % crc32(view[at:seal_at])
            if properties[-11:] != digits[::-1] + _SEAL_END:
                return
        elif not _is_unsealed(properties) or crc32(view[at + _HEAD_BYTES : body_end]) != body_crc:
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
        properties.endswith(_SEAL_END)
        and not properties[-11:-1].isdigit()
        and (len(properties) < SEAL_BYTES or properties[-SEAL_BYTES] != 0)
    )
