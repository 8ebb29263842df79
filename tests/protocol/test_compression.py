"""All codecs decompress to the original body, within the given limit."""

from __future__ import annotations

import base64
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CodecMissingError, MalformedMessageError, UsageError
from kourou.model.sysflag import COMPRESSED, COMPRESSION_ZLIB
from kourou.protocol.compression import CompressionType, compress, decompress
from tests.documented_errors import only_raises

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((VECTORS / "compression.json").read_text())["cases"]
TEXTS = {"packs well *400": "packs well " * 400}
LZ4, ZSTD, ZLIB = CompressionType
kinds = st.sampled_from(CompressionType)


def packed(body: bytes, kind: CompressionType) -> bytes:
    return compress(body, kind=kind)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['type']} {c['text']}")
def test_bodies_of_java_clients_are_decompressed(case: dict[str, Any]) -> None:
    body = base64.b64decode(case["compressed_b64"])
    expected = TEXTS.get(case["text"], case["text"]).encode()
    kind = CompressionType[case["type"]]

    assert kind == case["value"]
    assert kind.sys_flag == case["flag"] | COMPRESSED
    assert decompress(body, case["flag"], size_max=1 << 20) == expected


def test_compression_types_equal_javas() -> None:
    tables = json.loads((VECTORS / "tables.json").read_text())

    assert [kind.name for kind in CompressionType] == tables["enums"]["CompressionType"]


def test_body_without_type_is_a_zlib_stream() -> None:
    assert decompress(compress(b"old client"), COMPRESSED, size_max=64) == b"old client"


def test_compressed_streams_begin_like_javas() -> None:
    assert compress(b"x" * 5000)[:2] == b"\x78\x5e"
    assert packed(b"x" * 5000, ZSTD)[:4] == b"\x28\xb5\x2f\xfd"
    # The fifth byte: version 1, independent blocks (Java cannot read others), no content size.
    assert packed(b"x" * 5000, LZ4)[:5] == b"\x04\x22\x4d\x18\x60"


@given(st.binary(), st.integers(1, 9), kinds)
def test_compressed_body_of_exactly_the_limit_is_decompressed(
    body: bytes, level: int, kind: CompressionType
) -> None:
    compressed = compress(body, level, kind)

    assert decompress(compressed, kind.sys_flag, size_max=len(body)) == body
    assert decompress(memoryview(compressed), kind.sys_flag, size_max=len(body)) == body


@pytest.mark.parametrize("kind", CompressionType)
def test_compressed_body_of_many_blocks_is_decompressed(kind: CompressionType) -> None:
    body = b"".join(bytes((i * i & 0xFF,)) * (i % 97) for i in range(20_000))

    assert decompress(packed(body, kind), kind.sys_flag, size_max=len(body)) == body


@given(st.binary(min_size=1), kinds)
def test_one_byte_over_the_limit_is_refused(body: bytes, kind: CompressionType) -> None:
    with pytest.raises(MalformedMessageError, match="more than"):
        decompress(packed(body, kind), kind.sys_flag, size_max=len(body) - 1)


@pytest.mark.parametrize("kind", CompressionType)
def test_decompression_bomb_uses_little_more_memory_than_the_limit(kind: CompressionType) -> None:
    bomb = compress(bytes(128 << 20), 9, kind)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match="more than 1048576 bytes"):
            decompress(bomb, kind.sys_flag, size_max=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 36 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(min_size=1), kinds, st.data())
def test_truncated_stream_is_refused(
    body: bytes, kind: CompressionType, data: st.DataObject
) -> None:
    compressed = packed(body, kind)
    size = data.draw(st.integers(0, len(compressed) - 1))
    with pytest.raises(MalformedMessageError, match=f"truncated {kind.name.lower()} stream"):
        decompress(compressed[:size], kind.sys_flag, size_max=1 << 20)


@pytest.mark.parametrize("kind", CompressionType)
def test_bytes_after_the_stream_are_ignored(kind: CompressionType) -> None:
    assert decompress(packed(b"body", kind) + b"junk", kind.sys_flag, size_max=4) == b"body"


@pytest.mark.parametrize("kind", CompressionType)
def test_error_of_an_invalid_stream_names_its_type(kind: CompressionType) -> None:
    with pytest.raises(MalformedMessageError, match=f"not a valid {kind.name.lower()} stream"):
        decompress(b"hello" * 10, kind.sys_flag, size_max=64)


@given(st.binary(), st.integers(0, 0x7FF))
def test_arbitrary_bytes_raise_only_malformed_message_errors(data: bytes, sys_flag: int) -> None:
    with only_raises(MalformedMessageError):
        decompress(data, sys_flag, size_max=1 << 16)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="type 4 is unknown"):
        decompress(b"", 0x400, size_max=1)


@pytest.mark.parametrize(
    ("kind", "package", "module"), [(LZ4, "lz4", "lz4.frame"), (ZSTD, "zstandard", "zstandard")]
)
def test_error_of_a_missing_codec_names_the_package(
    kind: CompressionType, package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = packed(b"body", kind)
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail

    with pytest.raises(CodecMissingError, match=r"pip install 'kourou\[fast\]'") as caught:
        decompress(body, kind.sys_flag, size_max=64)
    assert caught.value.package == package
    assert isinstance(caught.value, UsageError)
    with pytest.raises(CodecMissingError, match=package):
        packed(b"body", kind)
    assert decompress(compress(b"body"), COMPRESSION_ZLIB, size_max=64) == b"body"
