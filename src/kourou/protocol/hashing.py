"""Hash functions used on disk and on the wire: Java's String.hashCode and CRC-32."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

_UTF16_UNIT: Final = struct.Struct("<H")

# The hash is computed once per message, and tags and keys repeat.
_CACHED_TEXTS_MAX: Final = 8192


@lru_cache(maxsize=_CACHED_TEXTS_MAX)
def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode, a signed 32-bit number computed from UTF-16 code units."""
    value = 0
    # "surrogatepass", because a Java string may contain a lone surrogate.
    for (unit,) in _UTF16_UNIT.iter_unpack(text.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tags_code(tags: str | None) -> int:
    """Return the tag hash that a consume queue stores; 0 without a tag.

    Source: MessageExtBrokerInner.tagsString2tagsCode.
    """
    return java_string_hash(tags) if tags else 0


def crc32(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 (IEEE) without its top bit, as records store it.

    Source: UtilAll.crc32.
    """
    return _crc32(data) & 0x7FFF_FFFF


unmasked_crc32: Final = _crc32
"""The CRC-32 with its top bit. Callers that mask the bit themselves save a Python call."""


def crc32_all(parts: Iterable[bytes]) -> list[int]:
    """Return the `crc32` of each part without a Python call per part, which saves 0.1 us each."""
    return [value & 0x7FFF_FFFF for value in map(_crc32, parts)]
