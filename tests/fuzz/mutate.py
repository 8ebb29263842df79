"""Mutates valid bytes of a decoder into possibly invalid ones.

A case is one of the seeds after one to eight small changes, drawn from the random source passed
in: the same source gives the same case. Some changes target typical parts of protocols: sizes,
numbers at the limits of their types, and tokens of JSON.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

CASE_BYTES_MAX: Final = 64 * 1024
"""Larger cases are truncated, to limit the time of a case; wrong sizes need no large case."""

_CHANGES_MAX: Final = 8
_CHUNK_MAX: Final = 64
_INTEGERS: Final = (
    *(0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF),
    *(0x7FFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF),
)
_NUMBER: Final = re.compile(rb"-?[0-9]+")
_NUMBERS: Final = (
    *(b"0", b"-1", b"2147483647", b"2147483648", b"-2147483649", b"9223372036854775807"),
    *(b"9223372036854775808", b"99999999999999999999999", b"1e999", b"1.5", b"null", b"true"),
    *(b'"x"', b'""', b"[]", b"{}", b"[[[[[[[[", b'{"a":', b"NaN", b"-0", b"0x10", b"1_0"),
)
_TOKENS: Final = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"{{", b"}:"),
    *(b"null", b"true", b'{"brokerName":"b","queueId":0,"topic":"T"}:', b'{"$ref":"$"}'),
    *(b"\x01", b"\x02", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"||", b"=", b"\r\n"),
    *(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", b"\x28\xb5\x2f\xfd"),
)

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutate(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a mutated seed; there must be at least one seed, which may be empty bytes."""
    data = bytearray(source.choice(seeds))
    for _ in range(source.randint(1, _CHANGES_MAX)):
        source.choice(_CHANGES)(source, data, seeds)
        del data[CASE_BYTES_MAX:]
    return bytes(data)


def _flip_bit(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _set_byte(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[source.randrange(len(data))] = source.randrange(256)


def _set_integer(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Overwrite 1, 2, 4 or 8 bytes with a number at the limit of a type, often near the front."""
    size = source.choice((1, 2, 4, 8))
    if len(data) < size:
        return
    end = source.choice((len(data), min(len(data), 128)))
    at = source.randint(0, max(0, end - size))
    value = source.choice(_INTEGERS) + source.choice((0, 0, len(data), -len(data)))
    data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "big")


def _nudge(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Make a byte slightly larger or smaller, which gives sizes that are nearly correct."""
    if data:
        at = source.randrange(len(data))
        data[at] = data[at] + source.randint(-3, 3) & 0xFF


def _cut(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        del data[source.randrange(len(data)) :]


def _remove(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = source.randint(0, len(data))
    del data[at : at + source.randint(1, _CHUNK_MAX)]


def _repeat(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Repeat a piece, sometimes very often, for unusual depth and length."""
    at = source.randint(0, len(data))
    piece = bytes(data[at : at + source.randint(1, _CHUNK_MAX)])
    data[at:at] = piece * source.choice((1, 1, 2, 8, 512))


def _insert_bytes(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = source.randint(0, len(data))
    data[at:at] = source.randbytes(source.randint(1, _CHUNK_MAX))


def _insert_token(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = source.randint(0, len(data))
    data[at:at] = source.choice(_TOKENS) * source.choice((1, 1, 1, 2, 4000))


def _splice(source: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Replace the end with the end of another seed."""
    other = source.choice(seeds)
    data[source.randint(0, len(data)) :] = other[source.randint(0, len(other)) :]


def _swap_number(source: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Replace a decimal number with another token."""
    numbers = list(_NUMBER.finditer(data))
    if numbers:
        number = source.choice(numbers)
        data[number.start() : number.end()] = source.choice(_NUMBERS)


_CHANGES: Final[tuple[Change, ...]] = (
    *(_flip_bit, _set_byte, _set_integer, _nudge, _cut, _remove),
    *(_repeat, _insert_bytes, _insert_token, _splice, _swap_number),
)
