"""Contract of OsDisk and SimDisk; only SimDisk can crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.disk import Disk, OsDisk, replace
from kourou.errors import StoreLockedError
from kourou.testing.disk import SimDisk


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "os":
        with closing(OsDisk(tmp_path)) as real:
            yield real
    else:
        yield SimDisk()


def contents(disk: Disk, name: str) -> bytes:
    return disk.read(name, 0, disk.size(name) + 1)


def test_a_read_sees_an_unsynced_write(disk: Disk) -> None:
    disk.write("log", 0, [b"abc"])
    disk.write("log", 5, [b"z"])

    assert disk.size("log") == 6
    assert disk.read("log", 0, 99) == b"abc\0\0z"
    assert disk.read("log", 1, 2) == b"bc"


def test_a_view_shows_what_is_written_and_ends_with_the_file(disk: Disk) -> None:
    disk.write("log", 0, [b"abcdef"])

    view = disk.view_resident("log", 1, 3)
    assert view is not None
    assert bytes(view) == b"bcd"
    disk.write("log", 2, [b"XY"])
    assert [bytes(disk.view_resident("log", at, 2) or b"") for at in (0, 2, 4, 5, 6)] == [
        b"ab", b"XY", b"ef", b"", b"",
    ]  # fmt: skip


def test_there_is_no_view_of_a_missing_file(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.view_resident("log", 0, 1)


def test_a_view_shows_the_file_that_currently_has_the_name(disk: Disk) -> None:
    disk.write("log", 0, [b"old"])
    disk.view_resident("log", 0, 3)
    disk.unlink("log")
    disk.write("log", 0, [b"new"])
    assert bytes(disk.view_resident("log", 0, 3) or b"") == b"new"

    disk.write("other", 0, [b"abc"])
    disk.view_resident("other", 0, 3)
    disk.rename("log", "other")

    assert bytes(disk.view_resident("other", 0, 3) or b"") == b"new"


def test_a_sync_changes_nothing_that_is_read(disk: Disk) -> None:
    disk.write("log", 0, [b"abc"])
    disk.sync("log")
    disk.drop_cache("log")

    assert disk.read("log", 1, 99) == b"bc"


def test_a_pinned_file_stays_open_until_it_is_released(disk: Disk) -> None:
    disk.write("log", 0, [b"abc"])
    file = disk.pin("log")
    if file is None:
        return  # SimDisk has no descriptors
    disk.unlink("log")
    disk.write("log", 0, [b"another"])
    assert os.fstat(file.fd).st_size == 3
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fd)


def test_sync_all_syncs_many_files_and_ignores_missing_ones(disk: Disk) -> None:
    disk.make_directory("d")
    names = [f"d/{number}" for number in range(3_000)]
    for name in names:
        disk.write(name, 0, [b"abc"])
    disk.unlink("d/7")

    disk.sync_all(names, ["d", "gone"])
    disk.sync_all(names[:2], [])

    assert [contents(disk, name) for name in names if name != "d/7"] == [b"abc"] * 2_999
    assert not disk.exists("d/7")


def test_buffers_are_written_one_after_the_other(disk: Disk) -> None:
    disk.write("log", 2, [b"ab", bytearray(b"cd"), memoryview(b"ef")])

    assert contents(disk, "log") == b"\0\0abcdef"


def test_more_buffers_than_one_call_accepts_are_written(disk: Disk) -> None:
    buffers = [b"%05d" % number for number in range(3000)]

    disk.write("log", 0, buffers)

    assert contents(disk, "log") == b"".join(buffers)


def test_an_empty_write_creates_the_file(disk: Disk) -> None:
    disk.write("log", 0, [])

    assert disk.size("log") == 0


def test_a_read_beyond_the_end_is_empty(disk: Disk) -> None:
    disk.write("log", 0, [b"abc"])

    assert disk.read("log", 3, 10) == b""
    assert disk.read("log", 100, 10) == b""


def test_a_resident_read_is_the_same_bytes_or_none(disk: Disk) -> None:
    disk.write("log", 0, [b"abcdef"])

    assert disk.read_resident("log", 1, 3) in (b"bcd", None)
    assert disk.read_resident("log", 4, 99) in (b"ef", None)


@pytest.mark.parametrize("call", ["size", "read", "read_resident", "unlink", "modified_at_ms"])
def test_a_missing_file_is_an_error(disk: Disk, call: str) -> None:
    arguments = (0, 1) if call.startswith("read") else ()
    with pytest.raises(FileNotFoundError):
        getattr(disk, call)("absent", *arguments)


@pytest.mark.parametrize("call", ["sync", "sync_directory", "drop_cache"])
def test_a_missing_file_cannot_be_synced(disk: Disk, call: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(disk, call)("absent")


def test_a_write_needs_its_directory(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.write("absent/log", 0, [b"a"])


def test_truncate_cuts_and_extends_by_zeros(disk: Disk) -> None:
    disk.write("log", 0, [b"abcdef"])

    disk.truncate("log", 2)
    assert contents(disk, "log") == b"ab"
    disk.truncate("log", 4)
    assert contents(disk, "log") == b"ab\0\0"


def test_truncate_creates_the_file(disk: Disk) -> None:
    disk.truncate("log", 10_000)

    assert contents(disk, "log") == bytes(10_000)


def test_directories_are_created_with_their_parents_and_listed_sorted(disk: Disk) -> None:
    disk.make_directory("a/b")
    disk.make_directory("a/b")
    disk.write("a/z", 0, [b""])
    disk.write("a/c", 0, [b""])

    assert disk.list("a") == ["b", "c", "z"]
    assert disk.list("a/b") == []
    assert disk.list("absent") == []
    assert disk.list("a/z") == []
    assert disk.list("") == ["a"]
    assert disk.exists("a/b")
    assert not disk.exists("a/x")


def test_a_file_with_the_name_of_a_directory_is_an_error(disk: Disk) -> None:
    disk.write("a", 0, [b""])

    with pytest.raises(FileExistsError):
        disk.make_directory("a")


def test_rename_replaces_an_existing_file(disk: Disk) -> None:
    disk.write("old", 0, [b"new contents"])
    disk.write("name", 0, [b"old contents"])
    disk.rename("old", "name")

    assert contents(disk, "name") == b"new contents"
    assert disk.list("") == ["name"]


def test_a_new_file_of_an_old_name_is_a_new_file(disk: Disk) -> None:
    disk.write("log", 0, [b"a long text"])
    disk.unlink("log")
    disk.write("log", 0, [b"b"])

    assert contents(disk, "log") == b"b"


def test_a_directory_must_be_empty_to_be_removed(disk: Disk) -> None:
    disk.make_directory("a")
    disk.write("a/b", 0, [b""])
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory("a")
    disk.unlink("a/b")
    disk.remove_directory("a")

    assert disk.list("") == []


def test_a_lock_is_refused_to_a_second_holder_until_it_is_released(disk: Disk) -> None:
    unlock = disk.lock("lock")
    with pytest.raises(StoreLockedError, match="lock"):
        disk.lock("lock")
    unlock()
    unlock()

    disk.lock("lock")()
    assert contents(disk, "lock") == b"lock"


def test_a_lock_can_be_seen_without_taking_it(disk: Disk) -> None:
    assert not disk.is_locked("lock")
    unlock = disk.lock("lock")
    assert disk.is_locked("lock")
    with pytest.raises(StoreLockedError):
        disk.lock("lock")
    unlock()

    assert not disk.is_locked("lock")


def test_releasing_a_lock_twice_does_not_release_the_next_holders_lock(disk: Disk) -> None:
    first = disk.lock("lock")
    first()
    second = disk.lock("lock")
    first()

    with pytest.raises(StoreLockedError):
        disk.lock("lock")
    second()


def test_free_space_is_positive(disk: Disk) -> None:
    assert disk.free_bytes() > 0


def test_space_is_consistent(disk: Disk) -> None:
    total, free, available = disk.space()
    assert total >= free >= available > 0


def test_the_time_of_the_last_write_is_known(disk: Disk) -> None:
    disk.write("log", 0, [b"a"])

    assert disk.modified_at_ms("log") >= 0


def test_replace_keeps_the_old_contents_as_backup(disk: Disk) -> None:
    replace(disk, "config", b"one, which is longer", backup="config.bak")
    assert disk.list("") == ["config"]
    replace(disk, "config", b"two", backup="config.bak")

    assert contents(disk, "config") == b"two"
    assert contents(disk, "config.bak") == b"one, which is longer"
    assert disk.list("") == ["config", "config.bak"]


def test_replace_without_backup_leaves_one_file(disk: Disk) -> None:
    replace(disk, "config", b"one", backup=None)
    replace(disk, "config", b"two", backup=None)

    assert disk.list("") == ["config"]


def test_a_closed_disk_opens_its_files_again(disk: Disk) -> None:
    disk.write("log", 0, [b"abc"])
    disk.close()

    assert contents(disk, "log") == b"abc"


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 9000), st.binary(max_size=5000)),
            st.tuples(st.just("truncate"), st.integers(0, 9000), st.just(b"")),
        ),
        max_size=8,
    )
)
def test_sparse_pages_read_as_one_file(steps: list[tuple[str, int, bytes]]) -> None:
    disk, model = SimDisk(), bytearray()
    disk.write("log", 0, [])
    for step, offset, data in steps:
        if step == "write":
            disk.write("log", offset, [data])
            if data:
                model.extend(bytes(max(0, offset + len(data) - len(model))))
                model[offset : offset + len(data)] = data
        else:
            disk.truncate("log", offset)
            del model[offset:]
            model.extend(bytes(offset - len(model)))

    assert contents(disk, "log") == model


def test_data_is_found_after_a_hole(disk: Disk) -> None:
    disk.truncate("log", 1 << 20)
    assert disk.next_data("log", 5) == 1 << 20
    disk.write("log", 600_000, [b"abc"])

    found = disk.next_data("log", 5)
    assert 0 < found <= 600_000
    assert disk.read("log", found, 600_000 - found).strip(b"\0") == b""
    assert disk.next_data("log", 600_001) == 600_001
    assert disk.next_data("log", 700_000) == 1 << 20
    assert disk.next_data("log", 2 << 20) == 1 << 20
