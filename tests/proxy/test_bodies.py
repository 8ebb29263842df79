"""Bodies reach each client in a format that it can read."""

from __future__ import annotations

import gzip
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.http2.limits import GrpcLimits
from kourou.model import sysflag
from kourou.model.properties import PROPERTIES_SIZE_MAX
from kourou.protocol.codes import LanguageCode
from kourou.protocol.compression import CompressionType, compress
from kourou.proxy.bodies import INFLATED_BYTES_MAX, EncodedBody, encoded_body
from kourou.proxy.pb.v2 import Encoding

PLAIN = b"body " * 50
STORED = {
    "zlib": (compress(PLAIN), CompressionType.ZLIB.sys_flag),
    "old zlib": (compress(PLAIN), sysflag.COMPRESSED),
    "lz4": (compress(PLAIN, kind=CompressionType.LZ4), CompressionType.LZ4.sys_flag),
    "zstd": (compress(PLAIN, 3, CompressionType.ZSTD), CompressionType.ZSTD.sys_flag),
    "gzip": (gzip.compress(PLAIN, mtime=0), sysflag.COMPRESSED),
}


def checksum(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


@pytest.mark.parametrize(
    ("language", "readable"),
    [
        (LanguageCode.JAVA, {"zlib", "old zlib", "lz4", "zstd", "gzip"}),
        (LanguageCode.GO, {"zlib", "old zlib", "gzip"}),
        (LanguageCode.PYTHON, {"zlib", "old zlib", "gzip"}),
        (LanguageCode.DOTNET, {"zlib", "old zlib", "gzip"}),
        (LanguageCode.CPP, {"zlib", "old zlib"}),
        (LanguageCode.HTTP, {"gzip"}),
        (LanguageCode.NODE_JS, {"gzip"}),
        (LanguageCode.RUST, set()),
        (None, set()),
    ],
)
def test_unreadable_bodies_are_decompressed(
    language: LanguageCode | None, readable: set[str]
) -> None:
    for name, (body, sys_flag) in STORED.items():
        encoded = encoded_body(body, sys_flag, language)

        if name in readable:
            assert encoded == EncodedBody(body, Encoding.GZIP, checksum(body)), name
        else:
            assert encoded == EncodedBody(PLAIN, Encoding.IDENTITY, checksum(PLAIN)), name


def test_response_with_a_decompressed_body_leaves_its_connection_open() -> None:
    assert GrpcLimits().output_bytes_max > INFLATED_BYTES_MAX + 2 * PROPERTIES_SIZE_MAX


def test_plain_bodies_are_sent_as_stored() -> None:
    for body in (b"", PLAIN, gzip.compress(PLAIN, mtime=0)):
        plain = EncodedBody(body, Encoding.IDENTITY, checksum(body))
        assert encoded_body(body, 0, None) == plain


@pytest.mark.parametrize("name", STORED)
def test_bodies_above_the_limit_are_sent_as_stored(name: str) -> None:
    body, sys_flag = STORED[name]

    assert encoded_body(body, sys_flag, None, len(PLAIN)).encoding == Encoding.IDENTITY
    assert encoded_body(body, sys_flag, None, len(PLAIN) - 1) == EncodedBody(
        body, Encoding.GZIP, checksum(body)
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"\x1f\x8bxx", zlib.compress(PLAIN)[:-4], gzip.compress(PLAIN)[:-4], b"plain"],
    ids=["empty", "gzip head", "cut zlib", "cut gzip", "plain"],
)
def test_corrupt_bodies_are_sent_as_stored(body: bytes) -> None:
    assert encoded_body(body, sysflag.COMPRESSED, LanguageCode.RUST) == EncodedBody(
        body, Encoding.GZIP, checksum(body)
    )


@given(st.binary(max_size=60), st.integers(0, 2**31 - 1), st.sampled_from([None, *LanguageCode]))
def test_any_body_has_its_checksum(
    body: bytes, sys_flag: int, language: LanguageCode | None
) -> None:
    encoded = encoded_body(body, sys_flag, language, 1_000)

    assert encoded.checksum == checksum(encoded.body)
    assert len(encoded.body) <= 1_000
