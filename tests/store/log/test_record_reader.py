"""A plan's ranges are read correctly and in order, with any number of calls."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError
from kourou.store.log.commitlog import CommitLog
from kourou.store.log.record_reader import read_resident_ranges
from kourou.testing.disk import SimDisk

SEGMENT = 64 * 1024


class CountingDisk(SimDisk):
    """A disk that counts the reads of resident data."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.largest = 0

    def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
        self.calls += 1
        self.largest = max(self.largest, size)
        return super().read_resident(name, offset, size)


def filled_log(disk: SimDisk, segments: int) -> tuple[CommitLog, bytes]:
    """Return a log of whole segments, and its bytes."""
    disk.make_directory("commitlog")
    log = CommitLog(disk, SEGMENT)
    log.start_at(0)
    data = random.Random(1).randbytes(segments * SEGMENT)
    for start in range(0, len(data), SEGMENT):
        log.segments.create(start)
        disk.write(log.segments.name(start), 0, [data[start : start + SEGMENT]])
    return log, data


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * SEGMENT - 600), st.integers(1, 600)).filter(
            lambda at: at[0] // SEGMENT == (at[0] + at[1] - 1) // SEGMENT
        ),
        max_size=12,
    )
)
def test_ranges_are_returned_in_the_given_order(ranges: list[tuple[int, int]]) -> None:
    log, data = filled_log(SimDisk(), 3)

    read = read_resident_ranges(log, ranges)

    assert read == b"".join(data[at : at + size] for at, size in ranges)


def test_close_records_take_one_call() -> None:
    disk = CountingDisk()
    log, data = filled_log(disk, 1)
    ranges = [(at, 100) for at in range(0, SEGMENT, 800)]

    assert read_resident_ranges(log, ranges) == b"".join(
        data[at : at + 100] for at in range(0, SEGMENT, 800)
    )
    assert disk.calls == 1


def test_distant_records_take_one_call_each() -> None:
    disk = CountingDisk()
    disk.make_directory("commitlog")
    log = CommitLog(disk, 1024 * 1024)
    log.start_at(0)
    log.segments.create(0)

    assert read_resident_ranges(log, [(0, 10), (900_000, 10)]) == bytes(20)
    assert (disk.calls, disk.largest) == (2, 10)


def test_a_read_never_waits_and_a_removed_segment_gives_none() -> None:
    class HalfColdDisk(CountingDisk):
        def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
            return None if offset + size > 1000 else super().read_resident(name, offset, size)

    log, data = filled_log(HalfColdDisk(), 1)

    assert read_resident_ranges(log, [(0, 10), (500, 10)]) == data[:10] + data[500:510]
    assert read_resident_ranges(log, [(0, 10), (2000, 10)]) is None
    assert read_resident_ranges(log, [(5 * SEGMENT, 10), (5 * SEGMENT + 20, 10)]) is None


def test_a_truncated_segment_raises_an_error_that_names_the_byte() -> None:
    disk = SimDisk()
    log, _ = filled_log(disk, 1)
    disk.truncate(log.segments.name(0), 1000)

    with pytest.raises(CorruptRecordError, match="at byte 995"):
        read_resident_ranges(log, [(0, 10), (995, 10)])
