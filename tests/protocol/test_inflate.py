"""Streams inflate to the same with isal and with zlib."""

from __future__ import annotations

import random
import zlib
from types import ModuleType
from typing import Final

import pytest

from kourou.protocol.inflate import GZIP_BITS, ZLIB_BITS, InflateError, decompressobj
from tests.fuzz.mutate import mutate

isal_zlib: Final = pytest.importorskip("isal.isal_zlib")
CASES: Final = 20_000
CONTENTS: Final = (b"", b"kourou", b"ab" * 700, bytes(range(256)) * 3)
_RESERVED_FLAGS: Final = 0xE0


def stream(content: bytes, bits: int) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, bits)
    return compressor.compress(content) + compressor.flush()


def inflated(module: ModuleType, data: bytes, bits: int, size_max: int) -> bytes | None:
    """Return the content; None if the stream is damaged, cut off or larger."""
    inflater = module.decompressobj(bits)
    try:
        content: bytes = inflater.decompress(data, size_max + 1)
    except module.error:
        return None
    return content if inflater.eof and len(content) <= size_max else None


@pytest.mark.parametrize("bits", [ZLIB_BITS, GZIP_BITS])
def test_isal_inflates_what_zlib_inflates(bits: int) -> None:
    source, seeds = random.Random(bits), [stream(content, bits) for content in CONTENTS]
    whole = 0
    for number in range(CASES):
        data = mutate(source, seeds) if number >= len(seeds) else seeds[number]
        if bits == GZIP_BITS and len(data) > 3 and data[3] & _RESERVED_FLAGS:
            continue
        size_max = source.choice((5, 6, 1_399, 1_400, 5_000))
        expected = inflated(zlib, data, bits, size_max)
        assert inflated(isal_zlib, data, bits, size_max) == expected, data.hex()
        whole += expected is not None
    assert whole


@pytest.mark.parametrize("bits", [ZLIB_BITS, GZIP_BITS])
def test_damaged_streams_are_reported(bits: int) -> None:
    data = bytearray(stream(b"kourou" * 99, bits))
    assert decompressobj(bits).decompress(bytes(data), 10_000) == b"kourou" * 99
    data[-1] ^= 1
    with pytest.raises(InflateError):
        decompressobj(bits).decompress(bytes(data), 10_000)
