"""A config file or its backup is complete at any time, and the backup replaces a bad file."""

from __future__ import annotations

import errno
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError
from kourou.store.state.config_file import ConfigFile, seal, unseal
from kourou.testing.disk import SimDisk

NAME = "config/topics.json"
BACKUP = f"{NAME}.bak"
ZERO, ONE, TWO, THREE = b'{"n":0}', b'{"n":1}', b'{"n":2}', b'{"n":3}'


def config_file(disk: SimDisk) -> ConfigFile:
    return ConfigFile(disk, NAME, json.loads)


def contents(disk: SimDisk, name: str) -> bytes:
    return unseal(disk.read(name, 0, 999)).data


def put(disk: SimDisk, name: str, data: bytes | None) -> None:
    """Replace the contents of a file; None removes it."""
    if disk.exists(name):
        disk.unlink(name)
    if data is not None:
        disk.make_directory("config")
        disk.write(name, 0, [data])


def saved(*texts: bytes) -> SimDisk:
    disk = SimDisk()
    file = config_file(disk)
    for text in texts:
        file.save(text)
    return disk


def test_a_saved_file_is_loaded_again() -> None:
    disk = SimDisk()
    config_file(disk).save(b'{"a":1}')

    assert config_file(disk).load() == b'{"a":1}'
    assert contents(disk, NAME) == contents(disk, BACKUP) == b'{"a":1}'


def test_a_missing_file_loads_as_none() -> None:
    assert config_file(SimDisk()).load() is None


def test_the_previous_contents_are_kept_as_backup() -> None:
    disk = SimDisk()
    file = config_file(disk)
    file.save(ONE)
    file.save(TWO)

    assert contents(disk, BACKUP) == ONE


def test_unchanged_contents_are_not_written_again() -> None:
    disk = SimDisk()
    file = config_file(disk)
    file.save(ONE)
    before = disk.operations
    file.save(ONE)

    assert disk.operations == before
    loaded = config_file(disk)
    loaded.load()
    before = disk.operations
    loaded.save(ONE)
    assert disk.operations == before


BAD = {
    "missing": (None, "is missing"),
    "emptied": (b"", "is empty"),
    "cut": (seal(TWO, 3)[:-1], "is bad"),
    "cut in its contents": (b'{"n"', "is bad"),
    "no text": (b"\xff", "is bad"),
    "zeros": (bytes(60), "is bad"),
    "a flipped digit": (seal(TWO, 3).replace(b":2,", b":3,"), "checksum is wrong"),
    "a flipped digit of its number": (
        seal(TWO, 3).replace(b'"sequence":3', b'"sequence":7'),
        "checksum is wrong",
    ),
    "an older one": (seal(ZERO, 1), "is older"),
}
"""Bad contents of the file by name, with the reason in the log."""


@pytest.mark.parametrize(("bad", "reason"), BAD.values(), ids=list(BAD))
def test_the_backup_of_a_bad_file_is_used_and_logged(
    bad: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = saved(ZERO, ONE, TWO)
    put(disk, NAME, bad)
    file = config_file(disk)

    assert file.load() == ONE
    assert "config_file.restored" in caplog.text
    assert f"name={NAME} from={BACKUP} reason={NAME}" in caplog.text
    assert reason in caplog.text

    file.save(THREE)
    assert config_file(disk).load() == THREE
    assert contents(disk, BACKUP) == ONE, "a bad file must not become the backup"


@pytest.mark.parametrize(
    "bad", [b"", b"{", seal(ONE, 1)[:-2], seal(ONE, 1).replace(b":1,", b":9,")]
)
def test_a_load_of_only_bad_files_raises_with_their_names_and_keeps_them(bad: bytes) -> None:
    for names in ((NAME,), (BACKUP,), (NAME, BACKUP)):
        disk = SimDisk()
        for name in names:
            put(disk, name, bad)

        with pytest.raises(CorruptRecordError, match="remove both to start without") as caught:
            config_file(disk).load()

        assert caught.value.file == names[-1]
        assert NAME in str(caught.value)
        assert BACKUP in str(caught.value)
        assert [disk.read(name, 0, 99) for name in names] == [bad] * len(names)


def test_a_good_file_is_used_whatever_its_backup_contains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for bad in (None, b"", b"{", seal(THREE, 9)[:-1], seal(ZERO, 1), seal(b"{x}", 9)):
        disk = saved(ONE, TWO)
        put(disk, BACKUP, bad)

        assert config_file(disk).load() == TWO
    assert not caplog.records


def test_a_file_swapped_with_its_backup_is_detected() -> None:
    disk = saved(ONE, TWO)
    first, second = disk.read(NAME, 0, 999), disk.read(BACKUP, 0, 999)
    put(disk, NAME, second)
    put(disk, BACKUP, first)

    assert config_file(disk).load() == TWO


def java(counter: int) -> bytes:
    """Return the contents of a file saved by Java: without a seal."""
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1000 + counter}
    return json.dumps({"dataVersion": version}, indent="\t").encode()


def test_a_file_saved_by_java_is_used_and_its_sequence_continues() -> None:
    disk = saved(java(1), java(2))
    disk.rename(NAME, BACKUP)
    put(disk, NAME, java(2))  # commits of offsets do not change the data version
    file = config_file(disk)

    assert file.load() == java(2)
    file.save(java(3))
    assert unseal(disk.read(NAME, 0, 999)) == (java(3), 3)
    assert disk.read(BACKUP, 0, 999) == java(2)


def test_an_older_java_file_is_replaced_by_its_newer_backup() -> None:
    disk = SimDisk()
    put(disk, NAME, java(3))
    put(disk, BACKUP, java(4))

    assert config_file(disk).load() == java(4)


def test_a_save_without_a_load_keeps_the_good_backup() -> None:
    disk = saved(ONE, TWO)
    put(disk, NAME, b"{")
    config_file(disk).save(THREE)

    assert contents(disk, NAME) == THREE
    assert contents(disk, BACKUP) == ONE


def test_a_save_replaces_two_bad_files() -> None:
    disk = SimDisk()
    put(disk, NAME, b"{")
    put(disk, BACKUP, b"{")
    config_file(disk).save(ONE)

    assert config_file(disk).load() == ONE


def test_a_save_that_fails_leaves_the_old_contents() -> None:
    disk = SimDisk()
    config_file(disk).save(ONE)
    for operation in ("write", "sync", "rename"):
        disk.fail_after(0, OSError(errno.ENOSPC, "full"), (operation,))
        with pytest.raises(OSError, match="full"):
            config_file(disk).save(TWO)
        assert config_file(disk).load() == ONE


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
            file.save(b'{"n":%d}' % number)
            saved.append(b'{"n":%d}' % number)
    except KeyboardInterrupt:
        pass
    disk.on_operation = None
    disk.crash()

    last = saved[-1] if saved else None
    assert config_file(disk).load() in (last, b'{"n":%d}' % number)


def test_a_load_with_restores_rewrites_a_bad_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = saved(ONE, TWO)
    put(disk, NAME, b"broken")
    assert config_file(disk).load() == ONE
    assert disk.read(NAME, 0, 99) == b"broken"

    assert ConfigFile(disk, NAME, json.loads, restores=True).load() == ONE
    caplog.clear()
    disk.crash()
    assert ConfigFile(disk, NAME, json.loads, restores=True).load() == ONE
    assert contents(disk, NAME) == contents(disk, BACKUP) == ONE
    assert caplog.text == ""


def test_a_backup_is_loaded_even_if_the_file_cannot_be_rewritten() -> None:
    disk = saved(ONE, TWO)
    put(disk, NAME, None)
    disk.fail_after(0, OSError(errno.ENOSPC, "full"), ("write",))
    assert ConfigFile(disk, NAME, json.loads, restores=True).load() == ONE
