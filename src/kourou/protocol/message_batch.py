"""Codec of batch bodies: several messages for one queue, without their topic.

Layout of each message, big-endian:

    size  field
    4     total size   of this entry, in bytes
    4     magic        0, ignored
    4     body CRC     0, ignored
    4     flag         the user's
    4     body size
    n     body
    2     properties size, at most 32767
    n     properties

Source: MessageDecoder.encodeMessage and decodeMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from kourou.errors import InvalidMessageError, MalformedMessageError
from kourou.model.properties import PROPERTIES_SIZE_MAX

_HEAD: Final = struct.Struct(">iiiii")
PROPERTIES_SIZE: Final = struct.Struct(">h")
ENTRY_HEAD: Final = struct.Struct(">i8xii")
"""The head of an entry without the ignored fields: total size, flag, body size."""
ENTRY_BYTES_MIN: Final = _HEAD.size + PROPERTIES_SIZE.size


class BatchItem(NamedTuple):
    """One message of a batch; `properties` is the property text."""

    flag: int
    body: bytes
    properties: bytes


def entry_size(item: BatchItem) -> int:
    """Return the size of a message in a batch body, in bytes."""
    return ENTRY_BYTES_MIN + len(item.body) + len(item.properties)


def encode_batch(messages: Sequence[BatchItem]) -> bytes:
    """Return the body of a batch.

    Raises:
        InvalidMessageError: a flag is not a 32-bit number, or a property text is too long.
    """
    parts = []
    for message in messages:
        flag, body, properties = message
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise InvalidMessageError(
                f"properties of {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX}"
            )
        size = entry_size(message)
        try:
            parts.append(_HEAD.pack(size, 0, 0, flag, len(body)))
        except struct.error as error:
            raise InvalidMessageError(f"flag {flag} or a size does not fit: {error}") from None
        parts += (body, PROPERTIES_SIZE.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(data: bytes | memoryview, *, items_max: int | None = None) -> list[BatchItem]:
    """Return the messages of a batch body; an empty body has none.

    Args:
        data: the body.
        items_max: stop after decoding one message more than this; None decodes all.

    Raises:
        MalformedMessageError: an entry's sizes contradict each other or exceed the body.
    """
    items: list[BatchItem] = []
    at, end = 0, len(data)
    while at < end and (items_max is None or len(items) <= items_max):
        if end - at < ENTRY_BYTES_MIN:
            raise MalformedMessageError(f"batch entry at byte {at} is truncated")
        size, _, _, flag, body_size = _HEAD.unpack_from(data, at)
        # A negative size must not move the cursor back.
        if not 0 <= body_size <= end - at - ENTRY_BYTES_MIN:
            raise MalformedMessageError(f"batch entry at byte {at}: body of {body_size} bytes")
        body_start = at + _HEAD.size
        body_end = body_start + body_size
        properties_size = PROPERTIES_SIZE.unpack_from(data, body_end)[0]
        properties_start = body_end + PROPERTIES_SIZE.size
        if properties_size < 0 or size != ENTRY_BYTES_MIN + body_size + properties_size:
            raise MalformedMessageError(
                f"batch entry at byte {at}: size {size}, body {body_size}, "
                f"properties {properties_size}"
            )
        at += size
        if at > end:
            raise MalformedMessageError(f"batch entry ends {at - end} bytes after the body")
        items.append(
            BatchItem(flag, bytes(data[body_start:body_end]), bytes(data[properties_start:at]))
        )
    return items
