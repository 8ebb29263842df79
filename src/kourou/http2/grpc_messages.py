"""gRPC over HTTP/2: message framing, time limits, percent-encoding, status codes.

Source: grpc/doc/PROTOCOL-HTTP2.md and statuscodes.md of the gRPC project.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from kourou.errors import ProtocolError

PREFIX_BYTES: Final = 5
"""A byte for compression, and the length in four bytes."""
_GZIP: Final = 31
"""`wbits` of zlib for the form gzip."""
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
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


class GrpcError(ProtocolError):
    """A call ends with a status.

    Attributes:
        status: its code.
        text: its message.
    """

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def encode_message(message: bytes) -> bytes:
    """Return an uncompressed message with its prefix."""
    return len(message).to_bytes(PREFIX_BYTES, "big") + message


class MessageReader:
    """Cuts the data of one stream into messages.

    Attributes:
        held_bytes: bytes of an incomplete message.
    """

    __slots__ = ("_encoding", "_limit", "_parts", "held_bytes")

    def __init__(self, encoding: str, limit: int) -> None:
        """Read messages of at most `limit` bytes, compressed as `encoding` says if marked so."""
        self._encoding = encoding
        self._limit = limit
        self._parts = bytearray()
        self.held_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that `data` completes.

        Raises:
            GrpcError: a message is too large, or its compression is unknown or damaged.
        """
        if not self._parts and len(data) >= PREFIX_BYTES:  # mostly one message, whole
            size = int.from_bytes(data[1:PREFIX_BYTES], "big")
            if len(data) == PREFIX_BYTES + size and not data[0]:
                if size > self._limit:
                    raise self._too_large(size)
                yield data[PREFIX_BYTES:]
                return
        parts = self._parts
        parts += data
        at = 0
        try:
            while len(parts) - at >= PREFIX_BYTES:
                size = int.from_bytes(parts[at + 1 : at + PREFIX_BYTES], "big")
                if size > self._limit:
                    raise self._too_large(size)
                end = at + PREFIX_BYTES + size
                if end > len(parts):
                    break
                message = bytes(parts[at + PREFIX_BYTES : end])
                yield self._inflate(message, parts[at]) if parts[at] else message
                at = end
        finally:
            del parts[:at]
            self.held_bytes = len(parts)

    def _too_large(self, size: int) -> GrpcError:
        return GrpcError(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"gRPC message exceeds maximum size {self._limit}: {size}",
        )

    def _inflate(self, message: bytes, flag: int) -> bytes:
        if flag != 1:
            raise GrpcError(GrpcStatus.INTERNAL, f"compression flag {flag} is not 0 or 1")
        if self._encoding in ("", "identity"):
            raise GrpcError(GrpcStatus.INTERNAL, "a compressed message without grpc-encoding")
        try:
            inflater = zlib.decompressobj(_GZIP)
            inflated = inflater.decompress(message, self._limit)
            is_whole = inflater.eof and not inflater.unconsumed_tail
        except zlib.error as error:
            raise GrpcError(GrpcStatus.INTERNAL, f"gzip message is damaged: {error}") from None
        if not is_whole:
            if len(inflated) >= self._limit:
                raise self._too_large(len(inflated))
            raise GrpcError(GrpcStatus.INTERNAL, "gzip message is incomplete")
        return inflated


def parse_timeout(text: str) -> float | None:
    """Return the seconds of a `grpc-timeout`; None if the text is not one.

    It has one to eight digits and a unit.
    """
    digits, unit = text[:-1], text[-1:]
    if not 1 <= len(digits) <= _TIMEOUT_DIGITS or not (digits.isascii() and digits.isdigit()):
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
