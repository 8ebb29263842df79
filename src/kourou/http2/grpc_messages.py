"""gRPC over HTTP/2: message framing, time limits, percent-encoding, status codes.

Source: grpc/doc/PROTOCOL-HTTP2.md and statuscodes.md of the gRPC project.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from kourou.decimals import is_decimal
from kourou.errors import GrpcError
from kourou.protocol.inflate import GZIP_BITS, InflateError, decompressobj

PREFIX_BYTES: Final = 5
"""A byte for compression, and the length in four bytes."""
IDENTITY: Final = (b"", b"identity")
"""Values of grpc-encoding whose messages are not compressed."""
ENCODINGS: Final = (*IDENTITY, b"gzip")
"""Supported values of grpc-encoding."""
WORK_BYTES: Final = 32 * 1024
"""Bytes that are inflated in the time that a frame takes."""
INFLATION_MAX: Final = 32
"""Largest ratio of an inflated message to its size, above `FREE_BYTES`. Texts have 3 to 20."""
FREE_BYTES: Final = 512 * 1024
"""Size of an inflated message up to which its ratio is not limited."""
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS: Final = 8
_VISIBLE: Final = range(0x20, 0x7F)


class GrpcStatus(IntEnum):
    """Status codes of a call."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def message_prefix(size: int) -> bytes:
    """Return the prefix of an uncompressed message of `size` bytes."""
    return size.to_bytes(PREFIX_BYTES, "big")


class MessageReader:
    """Cuts the data of one stream into messages.

    Attributes:
        held_bytes: bytes of the incomplete message.
        announced_bytes: its size with prefix; 0 until the prefix is whole.
        inflated_bytes: bytes of inflated messages.
        unusual_bytes: those of them above `INFLATION_MAX` times the size of their message.
    """

    __slots__ = (
        "_data", "_encoding", "_inflated_limit", "_limit", "announced_bytes", "held_bytes",
        "inflated_bytes", "unusual_bytes",
    )  # fmt: skip

    def __init__(self, encoding: bytes, limit: int, inflated_limit: int | None = None) -> None:
        """Read messages; those marked so are compressed.

        Args:
            encoding: of compressed messages.
            limit: of the bytes of a message.
            inflated_limit: of the bytes of a message that was compressed; None: `limit`.
        """
        self._encoding = encoding
        self._limit = limit
        self._inflated_limit = limit if inflated_limit is None else inflated_limit
        self.inflated_bytes = self.unusual_bytes = 0
        self._data = bytearray()
        self.held_bytes = 0
        self.announced_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that `data` completes; exhaust it before the next call.

        Raises:
            GrpcError: a message is too large, or its compression is unknown or damaged.
        """
        self._data += data
        at, end = 0, len(self._data)
        self.announced_bytes = 0
        while end - at >= PREFIX_BYTES:
            size = int.from_bytes(self._data[at + 1 : at + PREFIX_BYTES], "big")
            if size > self._limit:
                raise _exhausted(f"a message of {size} bytes", self._limit)
            if at + PREFIX_BYTES + size > end:
                self.announced_bytes = PREFIX_BYTES + size
                break
            begin, at = at + PREFIX_BYTES, at + PREFIX_BYTES + size
            with memoryview(self._data) as view:  # one copy, not two
                message = bytes(view[begin:at])
            flag = self._data[begin - PREFIX_BYTES]
            yield self._inflate(message, flag) if flag else message
        if at:
            self._data = self._data[at:]  # of less than one message
        self.held_bytes = end - at

    def _inflate(self, message: bytes, flag: int) -> bytes:
        if flag != 1:
            raise GrpcError(GrpcStatus.INTERNAL, f"compression flag {flag} is not 0 or 1")
        if self._encoding in IDENTITY:
            raise GrpcError(GrpcStatus.INTERNAL, "a compressed message without grpc-encoding")
        limit = min(self._inflated_limit, max(FREE_BYTES, INFLATION_MAX * len(message)))
        inflater = decompressobj(GZIP_BITS)
        try:
            inflated = inflater.decompress(message, limit + 1)
        except InflateError as error:
            raise GrpcError(GrpcStatus.INTERNAL, f"gzip message is damaged: {error}") from None
        size = len(inflated)
        self.inflated_bytes += size
        self.unusual_bytes += max(size - INFLATION_MAX * len(message), 0)
        if size > limit:
            raise _exhausted(f"an inflated message of {len(message)} compressed bytes", limit)
        if not inflater.eof:
            raise GrpcError(GrpcStatus.INTERNAL, "gzip message is incomplete")
        return inflated


def _exhausted(what: str, limit: int) -> GrpcError:
    text = f"{what} exceeds the limit of {limit} bytes"
    return GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)


def parse_timeout(text: bytes) -> float | None:
    """Return the seconds of a `grpc-timeout`; None if the text is not one.

    It has one to eight digits and a unit.
    """
    digits, unit = text[:-1], text[-1:]
    if not is_decimal(digits, _TIMEOUT_DIGITS):
        return None
    seconds = _UNITS_S.get(unit)
    return None if seconds is None else int(digits) * seconds


def percent_encode(text: str) -> str:
    """Return the text of a status as `grpc-message` carries it."""
    if text.isascii() and text.isprintable() and "%" not in text:
        return text
    return "".join(
        chr(byte) if byte in _VISIBLE and byte != ord("%") else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )
