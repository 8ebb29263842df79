"""Message bodies compressed and inflated, by the bits of sys_flag.

zlib only: LZ4 and ZSTD bodies are refused by name, so that a consumer can say what is missing
rather than hand out bytes that nobody can read.

Source: CompressionType.java, ZlibCompressor.java, Compressor.java.
"""

from __future__ import annotations

import zlib
from typing import Final

from kourou.errors import MalformedMessageError
from kourou.model import sysflag

INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that one body may inflate to unless the caller says otherwise: a record of 16 MiB could
reach 16 GiB, and the sender decides what is in it."""

_PACKAGES: Final = {sysflag.COMPRESSION_LZ4: "lz4", sysflag.COMPRESSION_ZSTD: "zstandard"}
_ZLIB_FLAGS: Final = (0, sysflag.COMPRESSION_ZLIB)


def compress(body: bytes, level: int = 5) -> bytes:
    """Return the zlib stream of `body`; the sender sets COMPRESSED and COMPRESSION_ZLIB."""
    return zlib.compress(body, level)


def decompress(body: bytes | memoryview, sys_flag: int, *, size_max: int) -> bytes:
    """Return the inflated body, at most `size_max` bytes; memory stays bounded by that.

    Raises:
        MalformedMessageError: the type is not zlib, the stream is damaged or cut short, or it
            inflates to more than `size_max` bytes.
    """
    compression = sys_flag & sysflag.COMPRESSION_MASK
    if compression not in _ZLIB_FLAGS:
        package = _PACKAGES.get(compression)
        if package is None:
            raise MalformedMessageError(f"compression type {compression >> 8} is unknown")
        raise MalformedMessageError(
            f"the body is compressed by the codec of the package {package}, not supported yet"
        )
    inflater = zlib.decompressobj()
    try:
        # One more byte than allowed tells "too large" from "just fits"; 0 would mean no limit.
        inflated = inflater.decompress(body, size_max + 1)
    except zlib.error as error:
        raise MalformedMessageError(f"the body is no zlib stream: {error}") from None
    if len(inflated) > size_max:
        raise MalformedMessageError(f"the body inflates to more than {size_max} bytes")
    if not inflater.eof:
        raise MalformedMessageError("the body is a zlib stream cut short")
    return inflated
