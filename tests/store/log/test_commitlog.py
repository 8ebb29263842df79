"""The log rolls at the same positions as Java's, and a failed write leaves no trace."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError
from kourou.protocol.record.layout import MAGIC_BLANK, RECORD_START
from kourou.store.log.commitlog import CommitLog
from kourou.testing.disk import SimDisk

SEGMENT = 4096
FIRST, SECOND = (f"commitlog/{start:020d}" for start in (0, SEGMENT))


def new_log(disk: SimDisk | None = None) -> CommitLog:
    disk = disk or SimDisk()
    disk.make_directory("commitlog")
    log = CommitLog(disk, SEGMENT)
    log.start_at(0)
    return log


def add(log: CommitLog, size: int) -> int:
    position = log.position_for(size)
    log.add(position, b"r" * size)
    return position


@pytest.mark.parametrize(
    ("size", "position"),
    [
        (SEGMENT - 1000 - 8, 1000),  # a blank exactly fits after it
        (SEGMENT - 1000 - 7, SEGMENT),  # it does not
        (SEGMENT - 8, SEGMENT),
    ],
)
def test_a_record_must_leave_room_for_a_blank(size: int, position: int) -> None:
    log = new_log()
    add(log, 1000)

    assert add(log, size) == position


def test_a_blank_has_the_size_of_the_segments_rest() -> None:
    disk = SimDisk()
    log = new_log(disk)
    add(log, 1000)
    add(log, SEGMENT - 8)
    log.write()

    assert RECORD_START.unpack(disk.read(FIRST, 1000, 8)) == (SEGMENT - 1000, MAGIC_BLANK)
    assert disk.read(FIRST, 1008, SEGMENT) == bytes(SEGMENT - 1008)
    assert disk.read(SECOND, 0, SEGMENT) == b"r" * (SEGMENT - 8) + bytes(8)
    assert disk.size(FIRST) == disk.size(SECOND) == SEGMENT


def test_a_record_larger_than_a_segment_is_refused_with_the_limit() -> None:
    log = new_log()
    with pytest.raises(InvalidMessageError, match="4088"):
        log.position_for(SEGMENT - 7)

    assert log.appended_position == 0


@given(st.lists(st.integers(1, SEGMENT - 8), max_size=30), st.sets(st.integers(0, 30)))
def test_the_files_do_not_depend_on_how_appends_are_grouped_into_writes(
    sizes: list[int], writes: set[int]
) -> None:
    disks = SimDisk(), SimDisk()
    logs = [new_log(disk) for disk in disks]
    for number, size in enumerate(sizes):
        assert add(logs[0], size) == add(logs[1], size)
        if number in writes:
            logs[0].write()
    for log in logs:
        log.write()

    names = disks[0].list("commitlog")
    assert names == disks[1].list("commitlog")
    for name in names:
        path = f"commitlog/{name}"
        assert disks[0].read(path, 0, SEGMENT) == disks[1].read(path, 0, SEGMENT)


@given(st.lists(st.integers(1, 2000), max_size=8), st.lists(st.integers(1, 2000), max_size=8))
def test_back_to_a_mark_drops_later_appends(kept: list[int], dropped: list[int]) -> None:
    disks = SimDisk(), SimDisk()
    log, plain = (new_log(disk) for disk in disks)
    for size in kept:
        add(log, size)
        add(plain, size)
    mark = log.mark()
    for size in dropped:
        add(log, size)
    log.roll_back(mark)
    for size in (10, 3000, 2000):
        assert add(log, size) == add(plain, size)
    for one in (log, plain):
        one.write()

    assert disks[0].list("commitlog") == disks[1].list("commitlog")
    for name in disks[0].list("commitlog"):
        path = f"commitlog/{name}"
        assert disks[0].read(path, 0, SEGMENT) == disks[1].read(path, 0, SEGMENT)


@pytest.mark.parametrize("operations", range(6))
def test_undo_restores_the_files(operations: int) -> None:
    disk = SimDisk(operations)
    log = new_log(disk)
    add(log, 500)
    log.write()
    before = disk.read(FIRST, 0, SEGMENT)
    for _ in range(4):
        add(log, 3000)
    disk.fail_after(operations, OSError(errno.ENOSPC, "full"), ("write", "truncate"))
    with pytest.raises(OSError, match="full"):
        log.write()
    log.undo()

    assert disk.list("commitlog") == ["00000000000000000000"]
    assert disk.read(FIRST, 0, SEGMENT + 1) == before
    assert log.appended_position == log.written_position == 500
    assert add(log, 3000) == 500


def test_undo_of_the_first_write_leaves_no_file() -> None:
    disk = SimDisk()
    log = new_log(disk)
    add(log, 10)
    disk.fail_after(0, OSError(errno.ENOSPC, "full"), ("write",))
    with pytest.raises(OSError, match="full"):
        log.write()
    log.undo()
    assert disk.list("commitlog") == []

    add(log, 20)
    log.write()
    assert disk.read(FIRST, 0, 30) == b"r" * 20 + bytes(10)


def test_a_log_continues_in_a_segment_that_does_not_exist_yet() -> None:
    disk = SimDisk()
    log = new_log(disk)
    log.segments.create(0)
    log.start_at(SEGMENT)

    assert add(log, 10) == SEGMENT
    log.write()
    assert log.unsynced_files() == (SECOND,)
    assert log.unsynced_directories() == ("commitlog",)
    log.synced(log.written_position)
    assert log.unsynced_files() == log.unsynced_directories() == ()
