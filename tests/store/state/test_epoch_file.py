"""The file of epochs is Java's, and one good copy of it survives a crash or a damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError, EpochError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.store.paths import EPOCHS
from kourou.store.state.epoch_file import (
    decode_epochs,
    encode_epochs,
    read_epochs,
    save_epochs,
)
from kourou.testing.disk import SimDisk

JAVA: bytes = b"2\n773307083\n7-7000\n8-8000\n"
"""The example in the comment of CheckpointFile.java."""
TWO = EpochList([EpochEntry(7, 7000), EpochEntry(8, 8000)])


def put(disk: SimDisk, name: str, data: bytes) -> None:
    disk.truncate(name, 0)
    disk.write(name, 0, [data])


def test_contents_are_those_of_java() -> None:
    assert encode_epochs(TWO) == JAVA
    assert list(decode_epochs(JAVA)) == list(TWO)
    assert list(decode_epochs(JAVA.replace(b"\n", b"\r\n"))) == list(TWO)


def test_a_file_without_a_checksum_is_accepted_like_in_java() -> None:
    assert list(decode_epochs(b"1\n0\n7-7000\n")) == [EpochEntry(7, 7000)]


def test_saved_epochs_are_read_again() -> None:
    disk = SimDisk()
    assert list(read_epochs(disk)) == []

    for epochs in (TWO, TWO.begin(9, 9000), EpochList()):
        save_epochs(disk, epochs)
        assert list(read_epochs(disk)) == list(epochs)


@given(st.integers(0, len(JAVA) - 2))
def test_a_file_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(EpochError):
        decode_epochs(JAVA[:size])


@given(st.integers(0, len(JAVA) - 1), st.integers(0, 7))
def test_a_flipped_bit_changes_no_epoch(at: int, bit: int) -> None:
    damaged = bytearray(JAVA)
    damaged[at] ^= 1 << bit
    try:
        found = decode_epochs(bytes(damaged))
    except EpochError:
        return
    assert list(found) == list(TWO)


@given(st.binary(max_size=60))
def test_random_bytes_raise_epoch_errors_only(data: bytes) -> None:
    try:
        decode_epochs(data)
    except EpochError:
        pass


def test_the_backup_replaces_a_damaged_file() -> None:
    disk = SimDisk()
    save_epochs(disk, TWO)
    save_epochs(disk, TWO.begin(9, 9000))
    put(disk, EPOCHS, b"3\n1\n7-7000\n8-8000\n9-9000\n")

    assert list(read_epochs(disk)) == list(TWO)


def test_two_damaged_files_are_refused() -> None:
    disk = SimDisk()
    save_epochs(disk, TWO)
    put(disk, EPOCHS, b"")
    put(disk, f"{EPOCHS}.bak", b"x")

    with pytest.raises(CorruptRecordError, match="restore it from a copy"):
        read_epochs(disk)
