"""Keys hashed in lanes have the same hashes as single keys."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.store.index.index_lanes import LANES_MAX, Remainders, lane_numbers, text_hashes

STARTS = st.one_of(st.sampled_from([0, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))


def hash_alone(start: int, text: bytes) -> int:
    value = 0
    for byte in text:
        value = value * 31 + byte
    value = (value + start) & 0xFFFF_FFFF
    return 0 if value == 2**31 else min(value, 2**32 - value)


def texts_of(lanes: int) -> st.SearchStrategy[list[tuple[int, bytes]]]:
    text = st.binary(min_size=8 * lanes, max_size=8 * lanes)
    ascii_text = text.map(lambda some: bytes(byte & 0x7F for byte in some))
    return st.lists(st.tuples(STARTS, ascii_text), min_size=1, max_size=20)


def hashed(texts: list[tuple[int, bytes]]) -> list[int]:
    starts = lane_numbers([start for start, _ in texts])
    return list(text_hashes(starts, b"".join(text for _, text in texts)))


@settings(max_examples=100)
@given(st.integers(1, 4).flatmap(texts_of))
def test_hashes_in_lanes_equal_single_hashes(texts: list[tuple[int, bytes]]) -> None:
    assert hashed(texts) == [hash_alone(*text) for text in texts]


def test_as_many_texts_as_lanes_are_hashed_in_order() -> None:
    texts = [(number * 1_000_003, f"{number:08}".encode()) for number in range(LANES_MAX)]
    assert hashed(texts) == [hash_alone(*text) for text in texts]


def test_lanes_with_the_largest_values_do_not_overflow_into_neighbours() -> None:
    largest, smallest = (2**32 - 1, b"\x7f" * 24), (0, bytes(24))
    expected = [hash_alone(*largest), hash_alone(*smallest)]
    assert hashed([largest, smallest] * 8) == expected * 8
    assert hashed([(2**31, bytes(8)), (0, bytes(8))]) == [0, 0]


@settings(max_examples=200)
@given(
    st.one_of(st.integers(1, 2**31 - 1), st.sampled_from([1, 2, 3, 8, 5_000_000, 2**31 - 1])),
    st.lists(st.integers(0, 2**31 - 1), max_size=40),
)
def test_remainders_equal_single_remainders(divisor: int, hashes: list[int]) -> None:
    edges = [0, 1, 2**31 - 1, divisor - 1, divisor & 0x7FFF_FFFF, 2**31 - 1 - 2**31 % divisor]
    some = [*hashes, *edges] * (1 + 1100 // (len(hashes) + len(edges)))
    assert Remainders(divisor).of(array("i", some)) == [value % divisor for value in some]
