"""Frames of HTTP/2: numbers, the frames that a server sends, and the padding of received ones.

    length   type   flags   stream id, the first bit ignored   payload
    3 bytes  1      1       4                                  `length` bytes

Source: RFC 9113, sections 4, 6 and 7.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from kourou.errors import Http2Error

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

HEAD_BYTES: Final = 9
FRAME_HEAD: Final = struct.Struct(">BHBBI")
"""The length's first byte and its other two; type; flags; stream id with the ignored bit."""
SETTING: Final = struct.Struct(">HI")
ID_MASK: Final = 0x7FFF_FFFF

FRAME_BYTES_MAX: Final = 16_384
"""Largest payload that a peer may send, and that any peer accepts, without other settings."""
WINDOW_BYTES: Final = 65_535
"""Flow-control window of a stream and of a connection, without other settings."""
WINDOW_BYTES_MAX: Final = 2**31 - 1
FRAME_BYTES_LIMIT: Final = 2**24 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20


class Setting(IntEnum):
    """Identifiers of settings."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Reasons of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


SETTINGS_ACK: Final = b"\0\0\0\x04\x01\0\0\0\0"


def frame_head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the first nine bytes of a frame."""
    return (size << 48 | kind << 40 | flags << 32 | stream_id).to_bytes(HEAD_BYTES, "big")


class HeaderFrame(NamedTuple):
    """A HEADERS frame without its stream id, which is between `start` and `block`."""

    start: bytes
    block: bytes


def header_frame(block: bytes, *, ends: bool) -> HeaderFrame:
    """Return the frame of a whole header block; `ends`: the last frame of its stream."""
    flags = END_HEADERS | END_STREAM if ends else END_HEADERS
    return HeaderFrame(frame_head(len(block), HEADERS, flags, 0)[:5], block)


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Return a frame with settings, in their order."""
    payload = b"".join(
        number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in settings.items()
    )
    return frame_head(len(payload), SETTINGS, 0, 0) + payload


def ping_ack(data: bytes) -> bytes:
    """Return the answer to a ping with these eight bytes."""
    return frame_head(8, PING, ACK, 0) + data


def reset_frame(stream_id: int, code: int) -> bytes:
    """Return a frame that ends a stream."""
    return frame_head(4, RST_STREAM, 0, stream_id) + code.to_bytes(4, "big")


def goaway_frame(last_stream_id: int, code: int, text: str = "") -> bytes:
    """Return a frame that says which streams were served."""
    data = text.encode()
    head = frame_head(8 + len(data), GOAWAY, 0, 0)
    return head + last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + data


def window_frame(stream_id: int, size: int) -> bytes:
    """Return a frame that lets the peer send `size` more bytes."""
    return frame_head(4, WINDOW_UPDATE, 0, stream_id) + size.to_bytes(4, "big")


def unpadded(payload: bytes) -> bytes:
    """Return the payload of a padded frame.

    Raises:
        Http2Error: the padding is longer than the frame.
    """
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
