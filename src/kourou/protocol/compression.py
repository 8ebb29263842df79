"""Message bodies compressed and inflated, by the bits of sys_flag.

    type  value  stream
    LZ4   1      one LZ4 frame
    ZSTD  2      one zstd frame
    ZLIB  3      one zlib stream; also what type 0 means, which clients before 5.0 sent

zlib is always there. The other two need the packages of the extra `fast`, imported when the first
such body comes: who never meets one need not install them.

Source: CompressionType.java, ZlibCompressor.java, Lz4Compressor.java, ZstdCompressor.java.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from importlib import import_module
from typing import Any, Final, Protocol

from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model import sysflag

INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that one body may inflate to unless the caller says otherwise: a record of 16 MiB could
reach 16 GiB, and the sender decides what is in it."""

_TYPE_SHIFT: Final = 8

_ZSTD_STEP_BYTES: Final = 512
"""Bytes given to zstd at once. It has no limit of its own for what comes out; a block of 4 bytes
may become 128 KiB, so a step becomes at most 16 MiB."""


class CompressionType(IntEnum):
    """How a body is compressed; the number is in bits 8 to 10 of sys_flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits of a message so compressed: the type, and COMPRESSED."""
        return self << _TYPE_SHIFT | sysflag.COMPRESSED


_MODULES: Final = {
    CompressionType.LZ4: ("lz4", "lz4.frame"),
    CompressionType.ZSTD: ("zstandard", "zstandard"),
}
"""The package to install and the module of it, by type."""


class _Inflater(Protocol):
    """What the three codecs have in common."""

    @property
    def eof(self) -> bool:
        """The end of the stream was reached."""

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """Return what `data` inflates to, at most `max_length` bytes."""


def compress(body: bytes, level: int = 5, kind: CompressionType = CompressionType.ZLIB) -> bytes:
    """Return the compressed `body`; the sender sets `kind.sys_flag`.

    `level` is 0 to 9 for ZLIB and 1 to 22 for ZSTD. LZ4 is used for its speed and has none, as in
    Java.

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
        # Java's library reads no blocks that lean on the one before.
        compressed = codec.compress(body, block_linked=False, store_size=False)
    return compressed


def decompress(body: bytes | memoryview, sys_flag: int, *, size_max: int) -> bytes:
    """Return the inflated body, at most `size_max` bytes; memory stays bounded by that.

    Bytes after the end of the stream are not looked at, as in Java.

    Raises:
        MalformedMessageError: the type is unknown, the stream is damaged or cut short, or it
            inflates to more than `size_max` bytes.
        CodecMissingError: the package that inflates the type is not installed.
    """
    kind = (sys_flag & sysflag.COMPRESSION_MASK) >> _TYPE_SHIFT or CompressionType.ZLIB
    try:
        kind = CompressionType(kind)
    except ValueError:
        raise MalformedMessageError(f"compression type {kind} is unknown") from None
    inflater, damaged = _inflater(kind)
    try:
        # One more byte than allowed tells "too large" from "just fits"; 0 would mean no limit.
        inflated = inflater.decompress(body, size_max + 1)
    except damaged as error:
        raise MalformedMessageError(f"the body is no {kind.name.lower()} stream: {error}") from None
    if len(inflated) > size_max:
        raise MalformedMessageError(f"the body inflates to more than {size_max} bytes")
    if not inflater.eof:
        raise MalformedMessageError(f"the body is a {kind.name.lower()} stream cut short")
    return inflated


def _inflater(kind: CompressionType) -> tuple[_Inflater, type[Exception]]:
    """Return what inflates one body of `kind`, and what it raises on damaged ones."""
    if kind is CompressionType.ZLIB:
        return zlib.decompressobj(), zlib.error
    codec = _codec(kind)
    if kind is CompressionType.ZSTD:
        return _ZstdInflater(codec.ZstdDecompressor().decompressobj()), codec.ZstdError
    return codec.LZ4FrameDecompressor(), RuntimeError


def _codec(kind: CompressionType) -> Any:  # noqa: ANN401 - the packages have no common type
    """Return the module of LZ4 or ZSTD; imported once, looked up later."""
    package, module = _MODULES[kind]
    try:
        return import_module(module)
    except ImportError:
        raise CodecMissingError(package) from None


class _ZstdInflater:
    """Inflates in small steps, so that a bomb is noticed before it has gone off."""

    def __init__(self, inflater: Any) -> None:  # noqa: ANN401 - zstandard may be missing
        self._inflater = inflater

    @property
    def eof(self) -> bool:
        return bool(self._inflater.eof)

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """Return what `data` inflates to; beyond `max_length` only what one step gave."""
        parts: list[bytes] = []
        size = 0
        for at in range(0, len(data), _ZSTD_STEP_BYTES):
            part = self._inflater.decompress(data[at : at + _ZSTD_STEP_BYTES])
            parts.append(part)
            size += len(part)
            if size >= max_length or self._inflater.eof:
                break
        return b"".join(parts)
