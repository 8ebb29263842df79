"""Bodies inflate to what was compressed, within the limit given."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedMessageError
from kourou.model.sysflag import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from kourou.protocol.compression import compress, decompress

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((VECTORS / "compression.json").read_text())["cases"]
TEXTS = {"packs well *400": "packs well " * 400}


@pytest.mark.parametrize("case", [c for c in CASES if c["type"] == "ZLIB"], ids=lambda c: c["text"])
def test_bodies_of_java_clients_inflate(case: dict[str, Any]) -> None:
    body = base64.b64decode(case["compressed_b64"])
    expected = TEXTS.get(case["text"], case["text"]).encode()

    assert decompress(body, case["flag"], size_max=1 << 20) == expected
    assert decompress(body, 0, size_max=1 << 20) == expected


def test_our_streams_begin_as_those_of_java_do() -> None:
    assert compress(b"x" * 5000)[:2] == b"\x78\x5e"


@given(st.binary(), st.integers(0, 9))
def test_any_body_survives_and_may_just_fit_the_limit(body: bytes, level: int) -> None:
    compressed = compress(body, level)

    assert decompress(compressed, COMPRESSION_ZLIB, size_max=len(body)) == body
    assert decompress(memoryview(compressed), 0, size_max=len(body)) == body


@given(st.binary(min_size=1))
def test_one_byte_over_the_limit_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="more than"):
        decompress(compress(body), COMPRESSION_ZLIB, size_max=len(body) - 1)


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match="more than 1048576 bytes"):
            decompress(bomb, 0, size_max=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(min_size=1), st.data())
def test_a_stream_cut_short_is_refused(body: bytes, data: st.DataObject) -> None:
    compressed = compress(body)
    size = data.draw(st.integers(0, len(compressed) - 1))
    with pytest.raises(MalformedMessageError, match="cut short"):
        decompress(compressed[:size], 0, size_max=1 << 20)


@given(st.binary(), st.integers(0, 0x7FF))
def test_arbitrary_bytes_raise_nothing_but_malformed_message(data: bytes, sys_flag: int) -> None:
    try:
        decompress(data, sys_flag, size_max=1 << 16)
    except MalformedMessageError:
        pass


@pytest.mark.parametrize(
    ("sys_flag", "reason"),
    [(COMPRESSION_LZ4, "lz4"), (COMPRESSION_ZSTD, "zstandard"), (0x400, "type 4 is unknown")],
)
def test_other_codecs_are_refused_by_the_name_of_their_package(sys_flag: int, reason: str) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        decompress(b"", sys_flag, size_max=1)
