"""A config file is whole at every moment, and a bad one is replaced by its backup."""

from __future__ import annotations

import errno
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError
from kourou.store.config_file import ConfigFile
from kourou.testing.disk import SimDisk

NAME = "config/topics.json"


def config_file(disk: SimDisk) -> ConfigFile:
    return ConfigFile(disk, NAME, json.loads)


def test_a_saved_file_is_loaded_again() -> None:
    disk = SimDisk()
    config_file(disk).save(b'{"a":1}')

    assert config_file(disk).load() == b'{"a":1}'
    assert disk.list("config") == ["topics.json"]


def test_a_new_store_has_none() -> None:
    assert config_file(SimDisk()).load() is None


def test_the_contents_before_stay_as_backup() -> None:
    disk = SimDisk()
    file = config_file(disk)
    file.save(b"[1]")
    file.save(b"[2]")

    assert disk.read(f"{NAME}.bak", 0, 99) == b"[1]"


def test_saving_the_same_again_costs_nothing() -> None:
    disk = SimDisk()
    file = config_file(disk)
    file.save(b"[1]")
    before = disk.operations
    file.save(b"[1]")

    assert disk.operations == before
    loaded = config_file(disk)
    loaded.load()
    before = disk.operations
    loaded.save(b"[1]")
    assert disk.operations == before


@pytest.mark.parametrize("bad", [None, b"", b"{", b"\xff"])
def test_a_bad_file_is_replaced_by_its_backup(bad: bytes | None) -> None:
    disk = SimDisk()
    for data in (b"[1]", b"[2]"):
        config_file(disk).save(data)
    disk.unlink(NAME)
    if bad is not None:
        disk.write(NAME, 0, [bad])
    file = config_file(disk)

    assert file.load() == b"[1]"
    file.save(b"[3]")
    assert config_file(disk).load() == b"[3]"
    assert disk.read(f"{NAME}.bak", 0, 99) == b"[1]", "a bad file must not become the backup"


def test_a_bad_file_without_backup_is_an_error_that_names_it() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(NAME, 0, [b"{"])
    with pytest.raises(CorruptRecordError, match=r"topics\.json.*no backup"):
        config_file(disk).load()


def test_a_bad_backup_is_an_error_that_names_it() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(f"{NAME}.bak", 0, [b"{"])
    with pytest.raises(CorruptRecordError, match=r"topics\.json\.bak"):
        config_file(disk).load()


def test_a_save_that_fails_leaves_the_old_contents() -> None:
    disk = SimDisk()
    config_file(disk).save(b"[1]")
    for operation in ("write", "sync", "rename"):
        disk.fail_after(0, OSError(errno.ENOSPC, "full"), (operation,))
        with pytest.raises(OSError, match="full"):
            config_file(disk).save(b"[2]")
        assert config_file(disk).load() == b"[1]"


@settings(max_examples=100)
@given(seed=st.integers(0, 1 << 30), operations=st.integers(0, 30))
def test_a_crash_leaves_the_old_contents_or_the_new(seed: int, operations: int) -> None:
    disk = SimDisk(seed)
    disk.make_directory("config")
    disk.sync_directory("")
    saved: list[bytes] = []

    def lose_power(_operation: str, _name: str) -> None:
        if disk.operations > operations + 2:
            raise KeyboardInterrupt

    disk.on_operation = lose_power
    file = config_file(disk)
    number = 0
    try:
        for number in range(4):
            file.save(b"[%d]" % number)
            saved.append(b"[%d]" % number)
    except KeyboardInterrupt:
        pass
    disk.on_operation = None
    disk.crash()

    last = saved[-1] if saved else None
    assert config_file(disk).load() in (last, b"[%d]" % number)
