"""SimDisk loses only unsynced data in a crash, and fails on request."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.errors import StoreLockedError
from kourou.testing.disk import PAGE, SECTOR, SimDisk


def contents(disk: SimDisk, name: str = "log") -> bytes:
    return disk.read(name, 0, disk.size(name))


def synced_disk(seed: int, data: bytes) -> SimDisk:
    """Return a disk with durable `data`."""
    disk = SimDisk(seed)
    disk.write("log", 0, [data])
    disk.sync("log")
    disk.sync_directory("")
    return disk


def outcomes(change: str, data: bytes = b"", old: bytes = b"old") -> set[bytes | None]:
    """Return the possible contents of the file after a change and a crash, over many seeds."""
    found: set[bytes | None] = set()
    for seed in range(60):
        disk = synced_disk(seed, old)
        if change == "write":
            disk.write("log", 0, [data])
        elif change == "truncate":
            disk.truncate("log", 1)
        elif change == "unlink":
            disk.unlink("log")
        disk.crash()
        found.add(contents(disk) if disk.exists("log") else None)
    return found


@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 30), synced=st.binary(min_size=1), lost=st.binary(min_size=1))
def test_a_crash_keeps_synced_data(seed: int, synced: bytes, lost: bytes) -> None:
    disk = synced_disk(seed, synced)
    disk.write("log", PAGE, [lost])
    disk.crash()

    assert contents(disk).startswith(synced)


def test_an_unsynced_write_may_survive_or_not() -> None:
    assert outcomes("write", b"new") == {b"old", b"new"}


def test_an_unsynced_change_of_size_may_survive_or_not() -> None:
    assert {len(left or b"") for left in outcomes("truncate")} == {1, 3}


def test_an_unsynced_removal_may_be_undone() -> None:
    assert outcomes("unlink") == {b"old", None}


def test_a_page_is_torn_at_sectors_only() -> None:
    left = outcomes("write", b"n" * PAGE, b"o" * PAGE)

    assert len(left) > 10
    for page in left:
        assert page is not None
        sectors = {page[at : at + SECTOR] for at in range(0, PAGE, SECTOR)}
        assert sectors <= {b"o" * SECTOR, b"n" * SECTOR}


def test_a_new_file_needs_its_directory_synced() -> None:
    left = set()
    for seed in range(30):
        disk = SimDisk(seed)
        disk.write("log", 0, [b"abc"])
        disk.sync("log")
        disk.crash()
        left.add(disk.exists("log"))

    assert left == {True, False}


def test_the_first_changes_in_a_directory_survive_a_crash() -> None:
    for seed in range(40):
        disk = SimDisk(seed)
        for name in ("a", "b", "c"):
            disk.write(name, 0, [b"x"])
        disk.rename("a", "d")
        disk.crash()

        assert disk.list("") in ([], ["a"], ["a", "b"], ["a", "b", "c"], ["b", "c", "d"])


def test_files_of_a_lost_directory_are_lost() -> None:
    left = set()
    for seed in range(30):
        disk = SimDisk(seed)
        disk.make_directory("a/b")
        disk.write("a/b/log", 0, [b"x"])
        disk.sync("a/b/log")
        disk.sync_directory("a/b")
        disk.sync_directory("a")
        disk.crash()
        left.add(disk.exists("a/b/log"))

    assert left == {True, False}


def test_the_same_seed_crashes_the_same_way() -> None:
    def run() -> bytes:
        disk = synced_disk(7, b"o" * 5 * PAGE)
        disk.write("log", 0, [b"n" * 5 * PAGE])
        disk.crash()
        return contents(disk)

    assert run() == run()


def test_pages_of_a_failed_sync_stay_in_the_cache_only() -> None:
    disk = synced_disk(1, b"old")
    disk.write("log", 0, [b"new"])
    disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        disk.sync("log")
    disk.sync("log")

    assert contents(disk) == b"new"
    disk.drop_cache("log")
    assert contents(disk) == b"old"


def test_a_crash_after_a_failed_sync_restores_the_old_bytes() -> None:
    disk = synced_disk(1, b"old")
    disk.write("log", 0, [b"new"])
    disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        disk.sync("log")
    disk.sync("log")
    disk.crash()

    assert contents(disk) == b"old"


def test_a_failed_write_has_written_a_part() -> None:
    sizes = set()
    for seed in range(20):
        disk = SimDisk(seed)
        disk.fail_after(0, OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            disk.write("log", 0, [b"abcd"])
        assert b"abcd".startswith(contents(disk))
        sizes.add(disk.size("log"))

    assert sizes == {0, 1, 2, 3, 4}


def test_an_injected_error_is_raised_once_at_its_operation() -> None:
    disk = SimDisk()
    disk.fail_after(2, OSError(errno.EIO, "broken"), ("write",))
    disk.write("log", 0, [b"a"])
    disk.write("log", 0, [b"b"])
    with pytest.raises(OSError, match="broken"):
        disk.write("log", 0, [b"c"])

    disk.write("log", 0, [b"d"])
    assert contents(disk) == b"d"


def test_a_full_disk_refuses_new_pages_and_overwrites_old_ones() -> None:
    disk = SimDisk(free=2 * PAGE)
    disk.write("log", 0, [b"a" * PAGE])
    assert disk.free_bytes() == PAGE
    with pytest.raises(OSError, match="No space") as caught:
        disk.write("log", PAGE, [b"b" * 2 * PAGE])
    assert caught.value.errno == errno.ENOSPC

    disk.write("log", 0, [b"c" * PAGE])
    disk.truncate("log", 0)
    assert disk.free_bytes() == 2 * PAGE


def test_each_operation_is_counted_and_passed_to_the_callback() -> None:
    disk = SimDisk()
    seen: list[tuple[str, str]] = []
    disk.on_operation = lambda operation, name: seen.append((operation, name))
    disk.write("log", 0, [b"a"])
    disk.sync("log")

    assert seen == [("write", "log"), ("sync", "log")]
    assert disk.operations == 2


def test_a_crash_releases_the_locks() -> None:
    disk = SimDisk()
    disk.lock("lock")
    with pytest.raises(StoreLockedError):
        disk.lock("lock")
    disk.crash()

    disk.lock("lock")()


def test_free_space_is_correct_after_removals_and_crashes() -> None:
    disk = SimDisk(3, free=10 * PAGE)
    for name in ("a", "b"):
        disk.write(name, 0, [b"x" * PAGE])
    disk.rename("a", "b")
    assert disk.free_bytes() == 9 * PAGE
    disk.sync("b")
    disk.sync_directory("")
    disk.write("b", 0, [b"y" * 4 * PAGE])
    disk.crash()

    disk.unlink("b")
    assert disk.free_bytes() == 10 * PAGE


def test_writes_and_truncations_set_the_modification_time() -> None:
    disk = SimDisk()
    disk.write("log", 0, [b"a"])
    assert disk.modified_at_ms("log") == 0

    disk.now_ms = lambda: 1_000
    disk.truncate("log", 10)
    disk.now_ms = lambda: 2_000
    disk.sync("log")
    contents(disk)
    assert disk.modified_at_ms("log") == 1_000

    disk.sync_directory("")
    disk.crash()
    assert disk.modified_at_ms("log") == 1_000
    disk.write("log", 0, [b"b"])
    assert disk.modified_at_ms("log") == 2_000
