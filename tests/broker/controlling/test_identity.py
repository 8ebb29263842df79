"""The id of a controlled broker survives restarts, and is Java's file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.controlling.controllers import Identity
from kourou.broker.controlling.identity import (
    APPLICATION_FILE,
    IDENTITY_FILE,
    Application,
    read_application,
    read_identity,
    save_application,
    save_identity,
)
from kourou.errors import CorruptRecordError
from kourou.testing.disk import SimDisk

MINE = Identity("DefaultCluster", "broker-a", 2)
APPLIED = Application(MINE, "127.0.0.1:10911;1700000000000")


def put(disk: SimDisk, name: str, data: bytes) -> None:
    disk.truncate(name, 0)
    disk.write(name, 0, [data])


def contents(disk: SimDisk, name: str) -> bytes:
    return bytes(disk.read(name, 0, disk.size(name)))


def test_files_are_those_of_java() -> None:
    disk = SimDisk()
    save_application(disk, APPLIED)
    assert contents(disk, APPLICATION_FILE) == (
        b"DefaultCluster#broker-a#2#127.0.0.1:10911;1700000000000"
    )
    save_identity(disk, MINE)
    assert contents(disk, IDENTITY_FILE) == b"DefaultCluster#broker-a#2"


def test_a_new_store_has_no_identity() -> None:
    assert read_identity(SimDisk()) is None
    assert read_application(SimDisk()) is None


def test_an_assigned_id_ends_its_application() -> None:
    disk = SimDisk()
    save_application(disk, APPLIED)
    assert read_application(disk) == APPLIED

    save_identity(disk, MINE)
    assert (read_identity(disk), read_application(disk)) == (MINE, None)


def test_a_damaged_identity_is_refused() -> None:
    disk = SimDisk()
    put(disk, IDENTITY_FILE, b"DefaultCluster#broker-a#0")
    with pytest.raises(CorruptRecordError, match="broker id '0' is not 1 to"):
        read_identity(disk)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused_or_no_application(data: bytes) -> None:
    disk = SimDisk()
    put(disk, IDENTITY_FILE, data)
    put(disk, APPLICATION_FILE, data)
    try:
        read_identity(disk)
    except CorruptRecordError:
        pass
    read_application(disk)
