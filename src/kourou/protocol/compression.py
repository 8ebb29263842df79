"""Compression and decompression of message bodies, by the bits of sys_flag.

    type  value  stream
    LZ4   1      one LZ4 frame
    ZSTD  2      one zstd frame
    ZLIB  3      one zlib stream; type 0, sent by older clients, means the same

zlib is always available. LZ4 and zstd need the packages of the extra `fast`, which are imported on
first use.

Source: CompressionType.java, ZlibCompressor.java, Lz4Compressor.java, ZstdCompressor.java.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from importlib import import_module
from typing import Any, Final

from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model import sysflag
from kourou.protocol.inflate import GZIP_BITS, ZLIB_BITS, InflateError, Inflater, decompressobj

DECOMPRESSED_SIZE_MAX: Final = 64 * 1024 * 1024
"""Default limit for the decompressed size of a body, in bytes. Without a limit, a record of 16 MiB
could decompress to 16 GiB, and its content is chosen by the sender."""

_TYPE_SHIFT: Final = 8

_ZSTD_STEP_BYTES: Final = 512
"""Input bytes per call of zstd, which has no output limit of its own. A block of 4 bytes may
decompress to 128 KiB, so one call returns at most 16 MiB."""


class CompressionType(IntEnum):
    """Compression type of a body; the number is in bits 8 to 10 of sys_flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The sys_flag bits of a message with this compression: the type and COMPRESSED."""
        return self << _TYPE_SHIFT | sysflag.COMPRESSED


_MODULES: Final = {
    CompressionType.LZ4: ("lz4", "lz4.frame"),
    CompressionType.ZSTD: ("zstandard", "zstandard"),
}
"""The package to install and its module, by type."""


def compress(body: bytes, level: int = 5, kind: CompressionType = CompressionType.ZLIB) -> bytes:
    """Return the compressed `body`; the sender sets `kind.sys_flag`.

    `level` is 0 to 9 for ZLIB and 1 to 22 for ZSTD. It is ignored for LZ4, as in Java.

    Raises:
        CodecMissingError: the package of `kind` is not installed.
    """
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    codec = _codec(kind)
    compressed: bytes
    if kind is CompressionType.ZSTD:
        compressed = codec.ZstdCompressor(level=level).compress(body)
    else:
        # Java's library cannot read linked blocks, which refer to the previous block.
        compressed = codec.compress(body, block_linked=False, store_size=False)
    return compressed


def decompress(body: bytes | memoryview, sys_flag: int, *, size_max: int) -> bytes:
    """Return the decompressed body, at most `size_max` bytes; memory use is bounded accordingly.

    Bytes after the end of the stream are ignored, as in Java.

    Raises:
        MalformedMessageError: the type is unknown, the stream is corrupt or truncated, or it
            decompresses to more than `size_max` bytes.
        CodecMissingError: the package that decompresses the type is not installed.
    """
    kind = (sys_flag & sysflag.COMPRESSION_MASK) >> _TYPE_SHIFT or CompressionType.ZLIB
    try:
        kind = CompressionType(kind)
    except ValueError:
        raise MalformedMessageError(f"compression type {kind} is unknown") from None
    return _decompressed(body, kind.name.lower(), *_decompressor(kind), size_max)


def decompress_gzip(body: bytes | memoryview, *, size_max: int) -> bytes:
    """Return a body that a gRPC client compressed, decompressed like those by `decompress`.

    Raises:
        MalformedMessageError: as from `decompress`.
    """
    return _decompressed(body, "gzip", decompressobj(GZIP_BITS), InflateError, size_max)


def _decompressed(
    body: bytes | memoryview,
    form: str,
    decompressor: Inflater,
    stream_error: type[Exception],
    size_max: int,
) -> bytes:
    try:
        # The extra byte distinguishes "too large" from "just fits"; 0 would mean no limit.
        decompressed = decompressor.decompress(body, size_max + 1)
    except stream_error as error:
        raise MalformedMessageError(f"the body is not a valid {form} stream: {error}") from None
    if len(decompressed) > size_max:
        raise MalformedMessageError(f"the body decompresses to more than {size_max} bytes")
    if not decompressor.eof:
        raise MalformedMessageError(f"the body is a truncated {form} stream")
    return decompressed


def _decompressor(kind: CompressionType) -> tuple[Inflater, type[Exception]]:
    """Return a decompressor for one body of `kind`, and the exception that it raises."""
    if kind is CompressionType.ZLIB:
        return decompressobj(ZLIB_BITS), InflateError
    codec = _codec(kind)
    if kind is CompressionType.ZSTD:
        return _ZstdDecompressor(codec.ZstdDecompressor().decompressobj()), codec.ZstdError
    return codec.LZ4FrameDecompressor(), RuntimeError


def _codec(kind: CompressionType) -> Any:  # noqa: ANN401 - the packages have no common type
    """Return the module of LZ4 or ZSTD, importing it on first use."""
    package, module = _MODULES[kind]
    try:
        return import_module(module)
    except ImportError:
        raise CodecMissingError(package) from None


class _ZstdDecompressor:
    """Decompresses in small steps, so that a decompression bomb is detected early."""

    def __init__(self, decompressor: Any) -> None:  # noqa: ANN401 - zstandard may be missing
        self._decompressor = decompressor

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.eof)

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """Return the decompressed data; it may exceed `max_length` by the output of one step."""
        parts: list[bytes] = []
        size = 0
        for at in range(0, len(data), _ZSTD_STEP_BYTES):
            part = self._decompressor.decompress(data[at : at + _ZSTD_STEP_BYTES])
            parts.append(part)
            size += len(part)
            if size >= max_length or self._decompressor.eof:
                break
        return b"".join(parts)
