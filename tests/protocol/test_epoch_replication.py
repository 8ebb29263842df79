"""Frames of the controller-mode protocol have Java's bytes, and decode from any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import FrameTooLargeError, MalformedFrameError, ProtocolError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.protocol.epoch_replication import (
    EPOCHS_MAX,
    NO_POSITION,
    TRANSFER_BYTES_MAX,
    EpochTransfer,
    MasterFrame,
    MasterFrameDecoder,
    MasterHandshake,
    Report,
    SlaveFrame,
    SlaveFrameDecoder,
    SlaveHandshake,
    encode_master_handshake,
    encode_report,
    encode_slave_handshake,
    encode_transfer_head,
)
from tests.protocol.test_replication import pieces_of

POSITIONS = st.integers(0, 2**63 - 1)
CUTS = st.lists(st.integers(0, 1000), max_size=9)
SLAVE_FRAMES = st.builds(SlaveHandshake, POSITIONS, st.booleans(), st.booleans()) | st.builds(
    Report, POSITIONS
)
ENTRIES = st.builds(EpochEntry, st.integers(0, 2**31 - 1), POSITIONS)
TRANSFERS = st.builds(EpochTransfer, POSITIONS, ENTRIES, POSITIONS, st.binary(max_size=60))


def encoded_slave(frame: SlaveFrame) -> bytes:
    if isinstance(frame, Report):
        return encode_report(frame.position)
    return encode_slave_handshake(frame)


def encoded_transfer(transfer: EpochTransfer) -> bytes:
    position, epoch, confirm, data = transfer
    return encode_transfer_head(position, epoch, confirm, len(data)) + data


def test_frames_have_the_bytes_of_java() -> None:
    handshake = encode_slave_handshake(SlaveHandshake(2, from_last_file=True))
    assert handshake.hex() == "00000001000100000000000000000002"
    assert encode_report(0x0102030405060708).hex() == "000000020102030405060708"

    epochs = EpochList([EpochEntry(3, 0), EpochEntry(4, 0x100)])
    assert encode_master_handshake(0x200, epochs).hex() == (
        "0000000100000018000000000000020000000004"
        "000000030000000000000000000000040000000000000100"
    )  # fmt: skip
    assert encode_transfer_head(0x180, EpochEntry(4, 0x100), 0x170, 0x0A0B).hex() == (
        "0000000200000a0b00000000000001800000000400000000000001000000000000000170"
    )  # fmt: skip


@given(st.lists(SLAVE_FRAMES, max_size=6), CUTS)
def test_slave_frames_decode_from_any_pieces(frames: list[SlaveFrame], cuts: list[int]) -> None:
    decoder = SlaveFrameDecoder()
    data = b"".join(map(encoded_slave, frames))

    assert [one for piece in pieces_of(data, cuts) for one in decoder.feed(piece)] == frames


@given(st.lists(TRANSFERS, max_size=6), CUTS)
def test_master_frames_decode_from_any_pieces(
    transfers: list[EpochTransfer], cuts: list[int]
) -> None:
    epochs = EpochList([EpochEntry(1, 0), EpochEntry(2, 300)])
    decoder = MasterFrameDecoder()
    data = encode_master_handshake(500, epochs) + b"".join(map(encoded_transfer, transfers))

    found: list[MasterFrame] = [
        one for piece in pieces_of(data, cuts) for one in decoder.feed(piece)
    ]
    handshake = found.pop(0)
    assert isinstance(handshake, MasterHandshake)
    assert (handshake.end, list(handshake.epochs)) == (500, list(epochs))
    assert found == transfers


def test_heartbeat_of_a_master_without_messages_has_no_position() -> None:
    heartbeat = EpochTransfer(NO_POSITION, EpochEntry(-1, 0), -1, b"")

    assert MasterFrameDecoder().feed(encoded_transfer(heartbeat)) == [heartbeat]
    with pytest.raises(MalformedFrameError, match="negative log position -1"):
        MasterFrameDecoder().feed(encoded_transfer(heartbeat._replace(data=b"x")))


def test_handshake_has_the_newest_epochs_that_java_has_room_for() -> None:
    epochs = EpochList(EpochEntry(number, number) for number in range(1, EPOCHS_MAX + 3))

    [handshake] = MasterFrameDecoder().feed(encode_master_handshake(5_000, epochs))
    assert isinstance(handshake, MasterHandshake)
    assert list(handshake.epochs) == list(epochs)[2:]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\x03" + bytes(16), "state 3.*classic protocol"),
        (b"\0\0\0\x01" + bytes(4) + b"\xff" * 8, "negative broker id -1"),
        (b"\0\0\0\x02" + b"\xff" * 8, "negative log position -1"),
    ],
)
def test_malformed_slave_frames_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(MalformedFrameError, match=text):
        SlaveFrameDecoder().feed(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\0\0\0\x01\0" + bytes(12), "state 0.*classic protocol"),
        (b"\0\0\0\x01\0\0\0\x0b" + bytes(12), "body of 11 bytes"),
        (b"\0\0\0\x02\xff\xff\xff\xff" + bytes(28), "body of -1 bytes"),
        (
            b"\0\0\0\x01\0\0\0\x18" + bytes(12) + bytes(24),
            "epoch 0 from position 0 must not follow epoch 0",
        ),
    ],
)
def test_malformed_master_frames_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(MalformedFrameError, match=text):
        MasterFrameDecoder().feed(data)


def test_frames_beyond_the_limit_are_refused_from_their_head() -> None:
    head = encode_transfer_head(0, EpochEntry(1, 0), 0, TRANSFER_BYTES_MAX + 1)
    with pytest.raises(FrameTooLargeError):
        MasterFrameDecoder().feed(head)
    with pytest.raises(FrameTooLargeError):
        MasterFrameDecoder().feed(b"\0\0\0\x01" + (12 * 1001).to_bytes(4, "big") + bytes(12))


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_random_bytes_raise_protocol_errors_only(pieces: list[bytes]) -> None:
    for decoder in (SlaveFrameDecoder(), MasterFrameDecoder(64)):
        try:
            for piece in pieces:
                decoder.feed(piece)
        except ProtocolError:
            pass
