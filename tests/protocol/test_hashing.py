"""Hashes equal Java's."""

from __future__ import annotations

import importlib
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.protocol import hashing
from kourou.protocol.hashing import crc32, java_string_hash, tags_code

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((VECTORS / "string_hash.json").read_text())["cases"]


def text_of(case: dict[str, Any]) -> str:
    if "utf16" in case:
        units = case["utf16"]
        return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", "surrogatepass")
    return str(case["text"])


@pytest.mark.parametrize("case", CASES, ids=lambda c: repr(text_of(c)[:16]))
def test_hashes_equal_javas(case: dict[str, Any]) -> None:
    text = text_of(case)

    assert java_string_hash(text) == case["hash"]
    assert tags_code(text) == case["tags_code"]
    # Java writes a lone surrogate as a question mark.
    assert crc32(text.encode(errors="replace")) == case["crc32_masked"]


def test_tags_code_is_zero_without_a_tag() -> None:
    assert tags_code(None) == tags_code("") == 0


@given(st.binary())
def test_checksum_has_31_bits_and_accepts_any_buffer(data: bytes) -> None:
    expected = zlib.crc32(data) & 0x7FFF_FFFF

    assert crc32(data) == crc32(bytearray(data)) == crc32(memoryview(data)) == expected


def test_the_checksum_works_without_the_fast_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        plain = importlib.reload(hashing)
        assert plain.crc32(b"hi") == 1486039724
    finally:
        monkeypatch.undo()
        importlib.reload(hashing)
