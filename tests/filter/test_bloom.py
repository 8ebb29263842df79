"""Bloom filters have the sizes and bit positions of Java's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import UsageError
from kourou.filter.bloom import BloomFilter, murmur3

VECTORS = Path(__file__).parent.parent / "golden" / "vectors" / "bloom.json"
CASES = json.loads(VECTORS.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['f']}-{case['n']}")
def test_filter_matches_java(case: dict[str, Any]) -> None:
    bloom = BloomFilter(case["f"], case["n"])
    assert (bloom.hash_count, bloom.bit_count) == (case["k"], case["m"])
    for expected in case["keys"]:
        positions = bloom.positions(expected["key"])
        bits = bloom.bit_map([expected["key"]])
        assert list(positions) == expected["positions"]
        assert bits.hex() == expected["bits_hex"]
        assert bloom.contains(bits, positions) is expected["hit"]


@given(st.lists(st.text(), min_size=1, max_size=40))
def test_added_key_is_always_found(keys: list[str]) -> None:
    bloom = BloomFilter()
    bits = bloom.bit_map(keys)
    assert all(bloom.contains(bits, bloom.positions(key)) for key in keys)


def test_most_other_keys_are_not_found() -> None:
    bloom = BloomFilter()
    bits = bloom.bit_map(f"group{n}#T" for n in range(16))
    hits = sum(bloom.contains(bits, bloom.positions(f"other{n}#T")) for n in range(1000))
    assert hits < 300


def test_bit_map_of_another_size_matches_every_key() -> None:
    bloom = BloomFilter()
    assert bloom.contains(b"", bloom.positions("g#T"))
    assert bloom.contains(bytes(3), bloom.positions("g#T"))
    assert not bloom.contains(bytes(bloom.bit_count // 8), bloom.positions("g#T"))


@pytest.mark.parametrize(("percent", "keys"), [(0, 32), (100, 32), (20, 0)])
def test_invalid_parameters_are_refused(percent: int, keys: int) -> None:
    with pytest.raises(UsageError, match="Bloom filter"):
        BloomFilter(percent, keys)


def test_hash_is_murmur3() -> None:
    assert murmur3(b"") == 0
    assert murmur3(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C
