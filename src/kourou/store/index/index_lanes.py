"""Hashes many keys at once, each in its own 64-bit lane of one long integer.

A dozen operations in C on each 8 characters of all keys replace as many interpreter steps per key:
0.06 us instead of 0.3 us.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final

LANE_BYTES: Final = 8
LANES_MAX: Final = 1024
"""Lanes of one integer: 8 KiB stay in the processor's first-level cache."""
_BYTES: Final = int.from_bytes(b"\xff\x00" * (4 * LANES_MAX), "little")
_PAIRS: Final = int.from_bytes(b"\xff\xff\x00\x00" * (2 * LANES_MAX), "little")
_FOURS: Final = int.from_bytes(b"\xff\xff\xff\xff\x00\x00\x00\x00" * LANES_MAX, "little")
_ONES: Final = int.from_bytes(b"\x01\x00\x00\x00\x00\x00\x00\x00" * LANES_MAX, "little")
_POSITIVE: Final = int.from_bytes(b"\xff\xff\xff\x7f\x00\x00\x00\x00" * LANES_MAX, "little")
"""Masks of the bits that are used of each lane. A mask longer than the number costs nothing."""
_LANE_POWER: Final = pow(31, LANE_BYTES, 1 << 32)
_LOW_HALF: Final = 0 if sys.byteorder == "little" else 1


def lane_numbers(numbers: Sequence[int]) -> bytes:
    """Return 32-bit numbers, each in its own lane."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def text_hashes(starts: bytes, texts: bytes) -> array[int]:
    """Return the absolute value of each text's 32-bit hash; 0 for -2 ** 31, which has none.

    Args:
        starts: at most `LANES_MAX` numbers packed by `lane_numbers`: for each text, the hash of
            all before it, times 31 to the power of its length.
        texts: all texts, ASCII, each padded with leading zeros to the same multiple of 8 bytes.
    """
    parts = memoryview(texts).cast("Q")  # only moved, never computed with: byte order is no matter
    step = len(texts) // len(starts)
    lanes = 0
    for at in range(step):
        # No overflow: below 2 ** 32 times below 2 ** 31.3, plus 42 bits, fits into 64 bits.
        lanes = (lanes & _FOURS) * _LANE_POWER + _sums(parts[at::step].tobytes())
    lanes = _absolute((lanes & _FOURS) + int.from_bytes(starts, "little"))
    halves = array("i", lanes.to_bytes(len(starts), sys.byteorder))
    # On a big-endian machine the last lane comes first.
    return halves[0::2] if sys.byteorder == "little" else halves[:0:-2]


class Remainders:
    """Computes the remainders of many hashes for a fixed divisor."""

    def __init__(self, divisor: int) -> None:
        """Precompute a multiplication that replaces the division by `divisor`, below 2 ** 31."""
        self._divisor = divisor
        # 31 bits times less than 33 bits fit into a lane; the error stays below 1 / divisor.
        self._shift = 31 + divisor.bit_length()
        self._factor = -(-(1 << self._shift) // divisor)
        lane = (1 << 64 - self._shift) - 1
        self._quotients = int.from_bytes(lane.to_bytes(LANE_BYTES, "little") * LANES_MAX, "little")

    def of(self, hashes: array[int]) -> list[int]:
        """Return the remainder of each hash (not negative), in half the time of `%` for each."""
        found: list[int] = []
        for first in range(0, len(hashes), LANES_MAX):
            some = hashes[first : first + LANES_MAX]
            wide = array("i", bytes(LANE_BYTES * len(some)))
            wide[_LOW_HALF::2] = some
            lanes = int.from_bytes(wide, sys.byteorder)
            lanes -= (lanes * self._factor >> self._shift & self._quotients) * self._divisor
            numbers = array("q", lanes.to_bytes(LANE_BYTES * len(some), sys.byteorder))
            found += numbers.tolist()
        return found


def _sums(tails: bytes) -> int:
    """Return in each lane the hash of its 8 characters: less than 2 ** 42."""
    # A tail's first character is the lowest byte of its lane; its factor is the highest power.
    lanes = int.from_bytes(tails, "little")
    lanes = (lanes & _BYTES) * 31 + (lanes >> 8 & _BYTES)
    lanes = (lanes & _PAIRS) * 31**2 + (lanes >> 16 & _PAIRS)
    return (lanes & _FOURS) * 31**4 + (lanes >> 32 & _FOURS)


def _absolute(lanes: int) -> int:
    """Return the absolute value of the lower 32 bits of each lane; lanes use 43 bits at most."""
    # Lanes with bit 31 set are negative: invert their other bits and add 1.
    negative = lanes >> 31 & _ONES
    return (lanes ^ (negative << 32) - negative) + negative & _POSITIVE
