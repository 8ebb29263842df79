"""Bloom filter that records in a message's bit map which consumer filters the message passed.

Each consumer group of a topic has the key `group#topic`, which hashes to a few bit positions. A
message that passes the group's filter has all these bits set in its bit map. If one of them is
clear, the message did not pass; if all are set, it probably did.

Source: BloomFilter.java and BitsArray.java, apache/rocketmq 5.5.0. The hash is the first 64 bits of
MurmurHash3 x64 128 with seed 0, split into a low and a high half.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from kourou.errors import UsageError

ERROR_PERCENT: Final = 20
"""RocketMQ's default false-positive rate in percent (maxErrorRateOfBloomFilter)."""
KEY_COUNT: Final = 32
"""RocketMQ's default number of consumer groups of a topic (expectConsumerNumUseFilter)."""

_PERCENT: Final = 100
_BITS_A_BYTE: Final = 8
_MASK_32: Final = 0xFFFF_FFFF
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_SIGN_32: Final = 0x8000_0000
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F


class BloomFilter:
    """Maps keys to bit positions, and builds and tests bit maps.

    Attributes:
        hash_count: number of positions of a key; some may be equal.
        bit_count: number of bits of a bit map, a multiple of 8.
    """

    __slots__ = ("bit_count", "hash_count")

    def __init__(self, error_percent: int = ERROR_PERCENT, key_count: int = KEY_COUNT) -> None:
        """Size the filter for a number of keys and a false-positive rate.

        Raises:
            UsageError: `error_percent` is not 1 to 99, or `key_count` is less than 1.
        """
        if not 1 <= error_percent < _PERCENT or key_count < 1:
            raise UsageError(
                f"a Bloom filter of {key_count} keys with {error_percent} % false positives: at "
                "least 1 key and 1 to 99 % are required"
            )
        error_rate = error_percent / 100.0
        # The order of operations is Java's: the last bit of a quotient can change the rounding up.
        self.hash_count = math.ceil(math.log(error_rate) / math.log(0.5))
        size = (
            key_count * (math.log(1 / error_rate) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        self.bit_count = _BITS_A_BYTE * math.ceil(math.ceil(size) / _BITS_A_BYTE)

    def positions(self, key: str) -> tuple[int, ...]:
        """Return the bit positions of a key."""
        hash_64 = murmur3(key.encode())
        low, high = hash_64 & _MASK_32, hash_64 >> 32
        positions = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & _MASK_32
            if combined & _SIGN_32:
                combined ^= _MASK_32
            positions.append(combined % self.bit_count)
        return tuple(positions)

    def bit_map(self, keys: Iterable[str]) -> bytes:
        """Return the bit map of a message that passed the filters of these keys."""
        bits = bytearray(self.bit_count // _BITS_A_BYTE)
        for key in keys:
            for position in self.positions(key):
                bits[position // _BITS_A_BYTE] |= 1 << position % _BITS_A_BYTE
        return bytes(bits)

    def contains(self, bit_map: bytes, positions: Iterable[int]) -> bool:
        """Return whether all of the bits are set in the bit map.

        A bit map of another size was built with other settings and proves nothing: the result is
        True.
        """
        if len(bit_map) * _BITS_A_BYTE != self.bit_count:
            return True
        return all(
            bit_map[position // _BITS_A_BYTE] >> position % _BITS_A_BYTE & 1
            for position in positions
        )


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of the hash of `data` (MurmurHash3 x64 128, seed 0)."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 ^= _mix_1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DC_E729 & _MASK_64
        h2 ^= _mix_2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x3849_5AB5 & _MASK_64
    h1 ^= _mix_1(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mix_2(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _MASK_64
    h2 = h2 + h1 & _MASK_64
    return _finalize(h1) + _finalize(h2) & _MASK_64


def _mix_1(block: int) -> int:
    return _rotate(block * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mix_2(block: int) -> int:
    return _rotate(block * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK_64


def _finalize(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK_64
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK_64
    return value ^ value >> 33
