"""A batch queue finds the batch of any offset, in memory, in files and across both."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.protocol.record.keys import INNER_MESSAGES_MAX
from kourou.store.formats import BATCH_ENTRY, BATCH_ENTRY_BYTES
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.batch_queue import BatchQueue, batch_entries
from kourou.testing.disk import SimDisk

PER_FILE = 4
FILE_BYTES = PER_FILE * BATCH_ENTRY_BYTES
COUNTS = st.lists(st.integers(1, 9), max_size=20)


def new_queue(disk: SimDisk | None = None) -> BatchQueue:
    return BatchQueue(disk or SimDisk(), "T", 3, FILE_BYTES)


def put(queue: BatchQueue, *counts: int) -> None:
    """Put batches with the given numbers of messages; batch n has 100 bytes at byte n * 100."""
    for count in counts:
        at = queue.end * 100
        queue.put(AppendedRecord(at, queue.max_offset, 100, "T", 3, 7, 5000 + at, count))


def reloaded(disk: SimDisk) -> BatchQueue:
    """Return the queue, loaded from its files."""
    queue = new_queue(disk)
    assert queue.segments.load() == []
    queue.restart_at(queue.find_end())
    return queue


def assert_entries(queue: BatchQueue, counts: list[int]) -> None:
    """Assert that each offset has the entry of its batch, and that there are no others."""
    wanted = [n * 100 for n, count in enumerate(counts) for _ in range(count)]
    entries = [queue.entry(offset) for offset in range(len(wanted))]
    assert entries == [(at, 100, 7) for at in wanted]
    assert queue.entry(len(wanted)) is None
    assert queue.max_offset == len(wanted)


def test_an_entry_is_forty_six_bytes_big_endian() -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    put(queue, 2, 3)
    queue.flush()

    name = "batchconsumequeue/T/3/00000000000000000000"
    second = disk.read(name, BATCH_ENTRY_BYTES, BATCH_ENTRY_BYTES)
    assert second.hex() == (
        "0000000000000064" + "00000064" + "0000000000000007" + f"{5100:016x}"
        "0000000000000002" + "0003" + "ffffffff" + "00000000"
    )
    assert disk.size(name) == FILE_BYTES


@given(st.lists(COUNTS, max_size=4))
def test_every_offset_is_found_before_and_after_flushes(flushes: list[list[int]]) -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    for counts in flushes:
        put(queue, *counts)
        queue.flush()
    put(queue, 2, 5)
    everything = [*chain.from_iterable(flushes), 2, 5]

    assert_entries(queue, everything)
    queue.flush()
    assert_entries(queue, everything)
    assert_entries(reloaded(disk), everything)


@given(COUNTS, st.integers(0, 25))
def test_a_restarted_queue_continues_after_the_kept_batches(counts: list[int], kept: int) -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    put(queue, *counts)
    queue.flush()
    kept = min(kept, len(counts))
    end = sum(counts[:kept])

    again = new_queue(disk)
    again.segments.load()
    assert again.has_entry_before(end, kept * 100)
    assert kept == 0 or not again.has_entry_before(end, kept * 100 - 100)
    again.restart_at(end)
    again.truncate()
    put(again, 4, 1)
    again.flush()
    assert_entries(again, [*counts[:kept], 4, 1])
    assert_entries(reloaded(disk), [*counts[:kept], 4, 1])


def test_an_offset_inside_a_batch_is_not_the_end_of_an_entry() -> None:
    queue = new_queue()
    put(queue, 5, 5)
    queue.flush()

    assert not queue.has_entry_before(7, 1000)
    assert not queue.has_entry_before(11, 1000)


@pytest.mark.parametrize(
    ("log_min", "expected"), [(0, 0), (1, 5), (100, 5), (101, 7), (450, 15), (999, 15)]
)
def test_the_minimum_is_the_first_batch_whose_record_is_in_the_log(
    log_min: int, expected: int
) -> None:
    queue = new_queue()
    put(queue, 5, 2, 3, 4, 1)
    queue.flush()
    queue.correct_min_offset(log_min)
    assert queue.min_offset == expected
    queue.correct_min_offset(0)
    assert queue.min_offset == expected


def test_files_that_refer_only_to_removed_records_are_expired_except_the_last() -> None:
    queue = new_queue()
    put(queue, *[2] * 11)
    queue.flush()

    assert [queue.count_expired_files(at) for at in (0, 300, 301, 700, 701, 9999)] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    queue.segments.hide_first(1)
    queue.correct_min_offset(400)
    assert (queue.min_offset, queue.max_offset) == (8, 22)
    assert queue.entry(7) is None
    assert queue.entry(9) == (400, 100, 7)


def test_offsets_of_lost_records_are_in_no_batch() -> None:
    queue = new_queue()
    put(queue, 3)
    queue.fill_to(10)
    put(queue, 2)

    assert [queue.entry(offset) is not None for offset in range(12)] == (
        [True] * 3 + [False] * 7 + [True] * 2
    )
    assert queue.index_of(5) == 1
    assert queue.entry(11) == (100, 100, 7)


def test_offsets_of_damaged_records_point_at_the_damage() -> None:
    queue = new_queue()
    put(queue, 3)
    queue.fill_to(3 + INNER_MESSAGES_MAX + 5, position=64, size=32)

    assert queue.entry(3) == queue.entry(3 + INNER_MESSAGES_MAX + 4) == (64, 32, 0)
    assert queue.max_offset == 3 + INNER_MESSAGES_MAX + 5


def test_after_a_crash_the_end_is_that_of_whole_entries_in_order() -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    put(queue, *[3] * 6)
    queue.flush()
    name = queue.segments.name(FILE_BYTES)

    assert queue.find_end_before(10_000) == 18
    assert queue.find_end_before(500) == 15
    assert queue.find_end_before(200) == 6
    entry = disk.read(name, BATCH_ENTRY_BYTES, BATCH_ENTRY_BYTES)
    disk.write(name, BATCH_ENTRY_BYTES, [entry[:30].ljust(BATCH_ENTRY_BYTES, b"\0")])
    assert queue.find_end_before(10_000) == 15, "a torn entry does not count"
    disk.write(name, 0, [bytes(FILE_BYTES)])
    assert queue.find_end_before(10_000) == 12


def test_unwritten_entries_are_recognized() -> None:
    data = BATCH_ENTRY.pack(0, 10, 0, 0, 0, 1, -1, 0) + bytes(BATCH_ENTRY_BYTES)
    assert [entry.is_written for entry in batch_entries(data)] == [True, False]
