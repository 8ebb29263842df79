"""Keys hashed in lanes have the same hashes as single keys."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.store.index.index_lanes import LANE_BYTES, NO_TAIL, Remainders, lane_hashes

STARTS = st.one_of(st.sampled_from([0, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
TAILS = st.binary(min_size=LANE_BYTES, max_size=LANE_BYTES).map(
    lambda tail: bytes(byte & 0x7F for byte in tail)
)


def hash_alone(start: int, tail: bytes) -> int:
    value = 0
    for byte in tail:
        value = value * 31 + byte
    value = (value + start) & 0xFFFF_FFFF
    return 0 if value == 2**31 else min(value, 2**32 - value)


@settings(max_examples=100)
@given(st.lists(st.tuples(STARTS, TAILS), max_size=20))
def test_lane_hashes_equal_single_hashes(keys: list[tuple[int, bytes]]) -> None:
    starts, tails = [start for start, _ in keys], b"".join(tail for _, tail in keys)
    assert list(lane_hashes(starts, tails)) == [hash_alone(*key) for key in keys]


def test_thousands_of_keys_are_hashed_in_order() -> None:
    tails = [f"{number:08}".encode() for number in range(3_000)]
    starts = [number * 1_000_003 for number in range(3_000)]
    expected = [hash_alone(start, tail) for start, tail in zip(starts, tails, strict=True)]
    assert list(lane_hashes(starts, b"".join(tails))) == expected


def test_lanes_with_the_largest_values_do_not_overflow_into_neighbours() -> None:
    largest = b"\x7f" * LANE_BYTES
    expected = (hash_alone(2**32 - 1, largest), hash_alone(0, NO_TAIL))
    assert lane_hashes([2**32 - 1, 0] * 8, (largest + NO_TAIL) * 8) == expected * 8
    assert lane_hashes([2**31, 0], NO_TAIL * 2) == (0, 0)


@settings(max_examples=200)
@given(
    st.one_of(st.integers(1, 2**31 - 1), st.sampled_from([1, 2, 3, 8, 5_000_000, 2**31 - 1])),
    st.lists(st.integers(0, 2**31 - 1), max_size=40),
)
def test_remainders_equal_single_remainders(divisor: int, hashes: list[int]) -> None:
    edges = [0, 1, 2**31 - 1, divisor - 1, divisor & 0x7FFF_FFFF, 2**31 - 1 - 2**31 % divisor]
    some = [*hashes, *edges] * (1 + 1100 // (len(hashes) + len(edges)))
    assert Remainders(divisor).of(array("i", some)) == [value % divisor for value in some]
