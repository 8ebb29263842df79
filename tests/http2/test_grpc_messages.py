"""gRPC messages: framing, compression, time limits, texts."""

from __future__ import annotations

import gzip
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import GrpcError
from kourou.http2.grpc_messages import (
    FREE_BYTES,
    INFLATION_MAX,
    GrpcStatus,
    MessageReader,
    message_prefix,
    parse_timeout,
    percent_encode,
)
from tests.http2.peer import message

LIMIT = 1000


def read(data: bytes, encoding: bytes = b"") -> list[bytes]:
    return list(MessageReader(encoding, LIMIT).feed(data))


def packed(size: int) -> bytes:
    """Return a compressed message of `size` zeros."""
    return message(gzip.compress(bytes(size), mtime=0), flag=1)


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_messages_are_read_from_any_pieces(messages: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(message_prefix(len(one)) + one for one in messages)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=20)))
    reader = MessageReader(b"", LIMIT)
    got: list[bytes] = []
    at = 0
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        got += reader.feed(sent[start:end])
        at += end - start
        whole = b"".join(message_prefix(len(one)) + one for one in got)
        assert reader.held_bytes == at - len(whole)
        if reader.held_bytes >= 5:
            assert reader.announced_bytes == 5 + len(messages[len(got)])
        else:
            assert reader.announced_bytes == 0
    assert got == messages


def test_compressed_and_plain_messages_may_alternate() -> None:
    data = message(b"plain") + message(gzip.compress(b"x" * 500), flag=1) + message(b"")

    assert read(data, b"gzip") == [b"plain", b"x" * 500, b""]


@pytest.mark.parametrize(
    ("data", "encoding", "status", "text"),
    [
        (b"\0\0\0\x03\xe9", b"", GrpcStatus.RESOURCE_EXHAUSTED, "1001 bytes exceeds the limit"),
        (packed(1001), b"gzip", GrpcStatus.RESOURCE_EXHAUSTED, "limit of 1000 bytes"),
        (packed(100_000), b"gzip", GrpcStatus.RESOURCE_EXHAUSTED, "an inflated message"),
        (message(b"no gzip" * 3, flag=1), b"gzip", GrpcStatus.INTERNAL, "damaged"),
        (message(packed(1)[5:-1], flag=1), b"gzip", GrpcStatus.INTERNAL, "incomplete"),
        (message(b"", flag=1), b"gzip", GrpcStatus.INTERNAL, "incomplete"),
        (packed(1), b"identity", GrpcStatus.INTERNAL, "without grpc-encoding"),
        (message(b"x", flag=2), b"gzip", GrpcStatus.INTERNAL, "flag 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_message_is_refused_with_its_status(
    data: bytes, encoding: bytes, status: int, text: str
) -> None:
    with pytest.raises(GrpcError, match=text) as caught:
        read(data, encoding)

    assert caught.value.status == status


def test_compressed_messages_have_a_limit_of_their_own() -> None:
    reader = MessageReader(b"gzip", LIMIT, 10)

    assert list(reader.feed(message(bytes(11)) + packed(10))) == [bytes(11), bytes(10)]
    with pytest.raises(GrpcError, match="limit of 10 bytes"):
        list(reader.feed(packed(11)))


def test_ratio_of_large_compressed_messages_is_limited() -> None:
    reader = MessageReader(b"gzip", 10_000_000)
    text = gzip.compress(b"".join(b"%07d" % n for n in range(150_000)))
    free = gzip.compress(bytes(FREE_BYTES))

    assert [len(one) for one in reader.feed(message(text, flag=1))] == [1_050_000]
    assert reader.unusual_bytes == 0
    assert [len(one) for one in reader.feed(message(free, flag=1))] == [FREE_BYTES]
    assert reader.unusual_bytes == FREE_BYTES - INFLATION_MAX * len(free)
    with pytest.raises(GrpcError, match=f"limit of {FREE_BYTES} bytes"):
        list(reader.feed(message(gzip.compress(bytes(FREE_BYTES + 1)), flag=1)))
    assert reader.inflated_bytes == 1_050_000 + 2 * FREE_BYTES + 1


def test_message_at_the_limit_is_accepted() -> None:
    assert read(message(bytes(LIMIT)) + packed(LIMIT), b"gzip") == [bytes(LIMIT)] * 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"4m", 0.004),
        (b"5u", 5e-6),
        (b"6n", 6e-9),
        (b"99999999H", 99_999_999 * 3600.0),
        (b"0S", 0.0),
        (b"100000000S", None),
        (b"S", None),
        (b"1", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"1s", None),
        (b"\xb2S", None),
        (b"", None),
    ],
)
def test_timeout_has_up_to_eight_digits_and_a_unit(text: bytes, seconds: float | None) -> None:
    assert parse_timeout(text) == pytest.approx(seconds)


@given(st.text())
def test_text_is_visible_ascii_and_decodes_to_itself(text: str) -> None:
    encoded = percent_encode(text)

    assert all(0x20 <= ord(letter) < 0x7F for letter in encoded)
    assert unquote(encoded) == text.encode("utf-8", "replace").decode()
