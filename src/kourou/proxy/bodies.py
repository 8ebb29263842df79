"""Encodings of bodies for the languages of clients.

Bodies that a remoting producer compressed are stored as zlib, LZ4 or zstd streams, those of a gRPC
producer as sent. gRPC names all of them GZIP, and clients recognize the format by its first bytes.
Not every client knows every format: a body in a format that the client cannot read is decompressed
here and sent as IDENTITY.

Source: GrpcConverter.java, apache/rocketmq 5.5.0; the clients of apache/rocketmq-clients.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

import msgspec

from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model import sysflag
from kourou.protocol.codes import LanguageCode
from kourou.protocol.compression import CompressionType, decompress, decompress_gzip
from kourou.proxy.pb.v2 import Encoding


class BodyFormat(Enum):
    """Format of a compressed body; the value is its first bytes."""

    GZIP = b"\x1f\x8b"
    ZLIB = b"\x78"
    LZ4 = b"\x04\x22\x4d\x18"
    ZSTD = b"\x28\xb5\x2f\xfd"


_ALL: Final = frozenset(BodyFormat)
_READABLE: Final = {
    LanguageCode.JAVA: _ALL,
    LanguageCode.GO: frozenset({BodyFormat.GZIP, BodyFormat.ZLIB}),
    LanguageCode.PYTHON: frozenset({BodyFormat.GZIP, BodyFormat.ZLIB}),
    LanguageCode.DOTNET: frozenset({BodyFormat.GZIP, BodyFormat.ZLIB}),
    LanguageCode.CPP: frozenset({BodyFormat.ZLIB}),
    LanguageCode.NODE_JS: frozenset({BodyFormat.GZIP}),
    LanguageCode.HTTP: frozenset({BodyFormat.GZIP}),  # the official client of Node
}
"""Formats that the official client of a language decompresses; others decompress nothing."""

_BY_TYPE: Final = {
    BodyFormat.ZLIB: CompressionType.ZLIB,
    BodyFormat.LZ4: CompressionType.LZ4,
    BodyFormat.ZSTD: CompressionType.ZSTD,
}

INFLATED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of a body that is decompressed here. `output_bytes_max` of a connection leaves no room for
much larger ones: the message would end the connection at each delivery."""


class EncodedBody(msgspec.Struct, frozen=True, gc=False):
    """A body as a client receives it; the checksum is its MD5 in upper-case hexadecimal digits."""

    body: bytes
    encoding: Encoding
    checksum: str


def encoded_body(
    body: bytes,
    sys_flag: int,
    language: LanguageCode | None,
    size_max: int = INFLATED_BYTES_MAX,
) -> EncodedBody:
    """Return the body of a stored message for a client.

    A body that cannot be decompressed here, or not within the limit, is sent as stored: the client
    then reports it.

    Args:
        body: as stored.
        sys_flag: that of the message, as stored.
        language: of the client; None if unknown.
        size_max: limit of the decompressed size in bytes.
    """
    if not sys_flag & sysflag.COMPRESSED:
        return EncodedBody(body, Encoding.IDENTITY, _checksum(body))
    if is_inflated(body, sys_flag, language):
        try:
            plain = _decompressed(body, _format(body), sys_flag, size_max)
        except (MalformedMessageError, CodecMissingError):
            pass
        else:
            return EncodedBody(plain, Encoding.IDENTITY, _checksum(plain))
    return EncodedBody(body, Encoding.GZIP, _checksum(body))


def is_inflated(body: bytes, sys_flag: int, language: LanguageCode | None) -> bool:
    """Return whether a stored body is to be decompressed for a client of the language."""
    if not sys_flag & sysflag.COMPRESSED:
        return False
    readable = frozenset() if language is None else _READABLE.get(language, frozenset())
    return _format(body) not in readable


def _format(body: bytes) -> BodyFormat | None:
    return next((one for one in BodyFormat if body.startswith(one.value)), None)


def _decompressed(body: bytes, stored_as: BodyFormat | None, sys_flag: int, size_max: int) -> bytes:
    """Return the decompressed body.

    Raises:
        MalformedMessageError: the stream is corrupt or decompresses to more than `size_max` bytes.
        CodecMissingError: the package for the format is not installed.
    """
    if stored_as is BodyFormat.GZIP:
        return decompress_gzip(body, size_max=size_max)
    kind = None if stored_as is None else _BY_TYPE[stored_as]
    return decompress(body, sys_flag if kind is None else kind.sys_flag, size_max=size_max)


def _checksum(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
