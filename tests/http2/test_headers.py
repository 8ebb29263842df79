"""Header blocks: decoded as the package hpack decodes them, checked as RFC 9113 demands."""

from __future__ import annotations

import tracemalloc

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedHeaderError
from kourou.http2.headers import (
    HeaderDecoder,
    are_trailers,
    encode_response,
    request_head,
)
from tests.documented_errors import only_raises

NAMES = st.sampled_from([":path", "content-type", "x-mq-request-id", "a", "te", "x" * 200]) | (
    st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=40)
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=12)
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a")]


def decode(block: bytes, decoder: HeaderDecoder | None = None) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value, _, _ in (decoder or HeaderDecoder()).decode(block)]


def fields_of(pairs: list[tuple[str, str]]) -> list[tuple[bytes, bytes, int, int]]:
    return HeaderDecoder().decode(hpack.Encoder().encode(pairs))


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.none() | st.integers(0, 4096)), max_size=8))
def test_blocks_of_one_connection_are_decoded_as_by_hpack(
    blocks: list[tuple[list[tuple[str, str, bool]], bool, int | None]],
) -> None:
    encoder, decoder, reference = hpack.Encoder(), HeaderDecoder(), hpack.Decoder()
    for fields, is_huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encoder.encode(fields, huffman=is_huffman)
        expected = [(bytes(n), bytes(v)) for n, v in reference.decode(block, raw=True)]
        assert decode(block, decoder) == expected
        assert expected == [(name.encode(), value.encode()) for name, value, _ in fields]


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_decoded_as_by_hpack_or_refused(blocks: list[bytes]) -> None:
    decoder, reference = HeaderDecoder(), hpack.Decoder()
    for block in blocks:
        try:
            expected = [(bytes(n), bytes(v)) for n, v in reference.decode(block, raw=True)]
        except (hpack.HPACKError, IndexError):
            with pytest.raises(MalformedHeaderError):
                decoder.decode(block)
            return
        with only_raises(MalformedHeaderError):  # a change of the table's size is checked here
            assert decode(block, decoder) == expected


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "unknown index"),
        (b"\x40\x05abc", "cut off"),
        (b"\x82\x3f\xe1\x1f", "size after a field"),
        (b"\x3f\xe2\x1f", "table of 4097 bytes"),
        (b"\xff\xff\xff\xff\xff\xff\x0f", "integer of more than 5 bytes"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "invalid Huffman code"),  # the end symbol
        (b"\x00\x81\x00\x00", "ends within a letter"),  # a padding of zeros
        (b"\x00\x82\x1f\xff\x00", "ends within a letter"),  # a padding of more than 7 bits
    ],
)
def test_invalid_block_is_refused_with_a_reason(block: bytes, reason: str) -> None:
    with pytest.raises(MalformedHeaderError, match=reason):
        HeaderDecoder().decode(block)


def test_table_is_bounded_and_forgets_its_oldest_entries() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for number in range(1000):
        decoder.decode(encoder.encode([(f"name-{number}", "v" * 50)]))

    assert len(decoder._entries) == 4096 // (len("name-999") + 50 + 32)
    assert decode(encoder.encode([("name-999", "v" * 50)]), decoder) == [(b"name-999", b"v" * 50)]


def test_entry_larger_than_the_table_empties_it() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    decoder.decode(encoder.encode([("a", "b")]))
    decoder.decode(encoder.encode([("large", "v" * 5000)]))

    assert decoder._entries == []


def test_names_of_many_clients_take_bounded_memory() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    tracemalloc.start()
    try:
        for number in range(20_000):
            name = hpack.NeverIndexedHeaderTuple(f"x-{number}-{'n' * 80}", "v")
            decoder.decode(encoder.encode([name], huffman=False))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_500_000


def test_name_is_allowed_after_a_refused_value_of_it() -> None:
    for refused, allowed in ((("te", "gzip"), ("te", "trailers")), (("x-b", "\n"), ("x-b", "v"))):
        assert request_head(fields_of([*REQUEST, refused])) is None
        assert request_head(fields_of([*REQUEST, allowed])) is not None


def test_head_has_the_fields_that_the_server_reads() -> None:
    head = request_head(
        fields_of(
            [
                *REQUEST,
                (":authority", "host:81"),
                ("grpc-timeout", "3S"),
                ("grpc-encoding", "gzip"),
                ("content-type", "application/grpc+proto"),
                ("content-length", "12"),
                ("x-other", "y"),
            ]
        )
    )

    assert head is not None
    assert (head.path, head.method, head.authority) == (b"/a", b"POST", b"host:81")
    assert (head.timeout, head.encoding) == (b"3S", b"gzip")
    assert (head.content_type, head.content_length) == (b"application/grpc+proto", 12)
    assert head.list_bytes == sum(32 + len(n) + len(v) for n, v, _, _ in head.fields)


@pytest.mark.parametrize(
    "pairs",
    [
        REQUEST[1:],
        REQUEST[:-1],
        [*REQUEST, (":path", "/b")],
        [*REQUEST, (":status", "200")],
        [*REQUEST[:2], ("a", "b"), REQUEST[2]],
        [*REQUEST[:2], (":path", "")],
        [*REQUEST, ("connection", "keep-alive")],
        [*REQUEST, ("te", "gzip")],
        [*REQUEST, ("content-length", "-1")],
        [*REQUEST, ("content-length", "9" * 19)],
        [*REQUEST, ("Upper", "x")],
        [*REQUEST, ("", "x")],
        [*REQUEST, ("sp ace", "x")],
        [*REQUEST, ("a", "line\nbreak")],
        [*REQUEST, (":unknown", "x")],
    ],
)
def test_forbidden_fields_are_no_request(pairs: list[tuple[str, str]]) -> None:
    for _ in range(2):  # the second time by what is remembered of the names
        assert request_head(fields_of(pairs)) is None
    assert request_head(fields_of(REQUEST)) is not None


def test_forbidden_value_from_the_table_is_forbidden_again() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for _ in range(2):
        fields = decoder.decode(encoder.encode([*REQUEST, ("upgrade", "h2c")]))
        assert request_head(fields) is None


def test_trailers_have_no_pseudo_fields() -> None:
    assert are_trailers(fields_of([("a", "b"), ("content-type", "c")]))
    assert not are_trailers(fields_of([("a", "b"), (":path", "/")]))
    assert not are_trailers(fields_of([("A", "b")]))


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 16_000])
def test_response_is_decoded_by_hpack(length: int) -> None:
    fields = {"content-type": "application/grpc", "grpc-message": "x" * length}
    block = encode_response(fields, 200)
    decoder = hpack.Decoder()

    def decoded(block: bytes) -> dict[str, str]:
        return {str(name): str(value) for name, value in decoder.decode(block)}

    assert decoded(block) == {":status": "200", **fields}
    assert decoded(encode_response(fields, 415))[":status"] == "415"
    assert decoded(encode_response(fields)) == fields
    assert not decoder.header_table.dynamic_entries
