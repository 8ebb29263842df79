"""Frames of the classic replication protocol have Java's bytes, and decode from any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import FrameTooLargeError, MalformedFrameError, ProtocolError
from kourou.protocol.replication import (
    TRANSFER_BYTES_MAX,
    ReportDecoder,
    Transfer,
    TransferDecoder,
    encode_report,
    encode_transfer_head,
)

POSITIONS = st.integers(0, 2**63 - 1)
TRANSFERS = st.builds(Transfer, POSITIONS, st.binary(max_size=60))


def encoded(transfers: list[Transfer]) -> bytes:
    return b"".join(
        encode_transfer_head(position, len(data)) + data for position, data in transfers
    )


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the data in pieces, cut at these fractions of 1000."""
    at = sorted({0, len(data), *(len(data) * cut // 1000 for cut in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


def test_frames_have_the_bytes_of_java() -> None:
    assert encode_report(0x0102030405060708) == bytes(range(1, 9))
    assert encode_transfer_head(1, 0x0A0B) == b"\0\0\0\0\0\0\0\x01\0\0\x0a\x0b"


@given(st.lists(POSITIONS, max_size=8), st.lists(st.integers(0, 1000), max_size=9))
def test_reports_decode_from_any_pieces(positions: list[int], cuts: list[int]) -> None:
    decoder = ReportDecoder()
    data = b"".join(map(encode_report, positions))

    assert [at for piece in pieces_of(data, cuts) for at in decoder.feed(piece)] == positions


@given(st.lists(TRANSFERS, max_size=6), st.lists(st.integers(0, 1000), max_size=9))
def test_transfers_decode_from_any_pieces(transfers: list[Transfer], cuts: list[int]) -> None:
    decoder = TransferDecoder()
    pieces = pieces_of(encoded(transfers), cuts)

    assert [one for piece in pieces for one in decoder.feed(piece)] == transfers


def test_only_a_transfer_that_two_pieces_share_is_copied() -> None:
    decoder = TransferDecoder()
    data = encoded([Transfer(0, b"one"), Transfer(3, b"two"), Transfer(6, b"three")])
    piece = bytearray(data)
    whole, split = decoder.feed(memoryview(piece)[:-3])
    assert (whole.data, split.data) == (b"one", b"two")

    piece[:] = bytes(len(piece))  # as the next read into the same buffer does

    assert whole.data == bytes(3)
    assert decoder.feed(data[-3:]) == [Transfer(6, b"three")]


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_random_bytes_raise_protocol_errors_only(pieces: list[bytes]) -> None:
    for decoder in (ReportDecoder(), TransferDecoder(64)):
        try:
            for piece in pieces:
                decoder.feed(piece)
        except ProtocolError:
            continue


@pytest.mark.parametrize("position", [-1, -(2**63)])
def test_a_report_of_a_negative_position_is_refused(position: int) -> None:
    with pytest.raises(MalformedFrameError, match=f"negative log position {position}"):
        ReportDecoder().feed(encode_report(7) + encode_report(position))


@pytest.mark.parametrize(("position", "size"), [(-1, 0), (0, -1)])
def test_a_transfer_of_a_negative_position_or_size_is_refused(position: int, size: int) -> None:
    with pytest.raises(MalformedFrameError, match=f"{size} bytes of its log from .* {position}"):
        TransferDecoder().feed(encode_transfer_head(position, size))


def test_a_transfer_is_refused_by_its_head_if_it_exceeds_the_limit() -> None:
    decoder = TransferDecoder(100)
    assert decoder.feed(encode_transfer_head(5, 100) + bytes(100)) == [Transfer(5, bytes(100))]

    with pytest.raises(FrameTooLargeError, match="101 bytes exceeds the limit of 100"):
        decoder.feed(encode_transfer_head(105, 101))


def test_the_largest_transfer_fits_into_the_buffer_of_a_java_slave() -> None:
    whole = encode_transfer_head(0, TRANSFER_BYTES_MAX) + bytes(TRANSFER_BYTES_MAX)

    assert len(whole) == 4 * 1024 * 1024
    assert TransferDecoder().feed(whole) == [Transfer(0, bytes(TRANSFER_BYTES_MAX))]
