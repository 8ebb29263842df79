"""Queue entries are the same after flushes, across files and for readers on other threads."""

from __future__ import annotations

import errno
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.store.formats import BLANK_ENTRY, ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.queues.appended import AppendedBatch, AppendedRecord
from kourou.store.queues.simple_queue import SimpleQueue
from kourou.testing.disk import SimDisk

PER_FILE = 8
FILE_BYTES = PER_FILE * ENTRY_BYTES


def new_queue(disk: SimDisk | None = None) -> SimpleQueue:
    return SimpleQueue(disk or SimDisk(), "T", 3, FILE_BYTES)


def reloaded(disk: SimDisk) -> SimpleQueue:
    """Return the queue, loaded from its files."""
    queue = new_queue(disk)
    assert queue.segments.load() == []
    queue.restart_at(queue.find_end())
    return queue


def record(physical_offset: int, size: int = 100, code: int = 7) -> AppendedRecord:
    return AppendedRecord(physical_offset, 0, size, "T", 3, code, 0)


def put(queue: SimpleQueue, count: int) -> None:
    for _ in range(count):
        queue.put(record(queue.max_offset * 100))


def test_an_entry_is_twenty_bytes_big_endian() -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    queue.put(record(0x0102, 0x03, -1))
    queue.flush()

    data = disk.read("consumequeue/T/3/00000000000000000000", 0, 20)
    assert data.hex() == "0000000000000102" + "00000003" + "ffffffffffffffff"
    assert disk.size("consumequeue/T/3/00000000000000000000") == FILE_BYTES


@given(st.lists(st.integers(0, 20), max_size=6))
def test_entries_are_the_same_before_and_after_flushes(counts: list[int]) -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    for count in counts:
        put(queue, count)
        queue.flush()
    put(queue, 3)

    expected = [QueueEntry(n * 100, 100, 7) for n in range(sum(counts) + 3)]
    assert [queue.entry(n) for n in range(len(expected))] == expected
    assert queue.entry(len(expected)) is None
    queue.flush()
    assert reloaded(disk).max_offset == len(expected)


def test_flush_returns_the_files_written_and_whether_one_is_new() -> None:
    queue = new_queue()
    put(queue, PER_FILE + 1)
    first, second = (f"consumequeue/T/3/{start:020d}" for start in (0, FILE_BYTES))
    assert queue.flush() == ([first, second], True)
    put(queue, 1)
    assert queue.flush() == ([second], False)
    assert queue.flush() == ([], False)


@pytest.mark.parametrize("operations", range(8))
def test_a_failed_flush_can_be_repeated(operations: int) -> None:
    disk = SimDisk(operations)
    queue = new_queue(disk)
    put(queue, PER_FILE + 3)
    disk.fail_after(operations, OSError(errno.ENOSPC, "full"), ("write", "truncate"))
    try:
        queue.flush()
    except OSError:
        assert queue.tail_bytes == (PER_FILE + 3) * ENTRY_BYTES
        assert queue.entry(PER_FILE + 2) == QueueEntry((PER_FILE + 2) * 100, 100, 7)
    queue.flush()

    again = reloaded(disk)
    assert [again.entry(n) for n in range(again.max_offset)] == [
        QueueEntry(n * 100, 100, 7) for n in range(PER_FILE + 3)
    ]


def test_a_first_entry_inside_a_file_is_preceded_by_blanks() -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    queue.start_at(PER_FILE + 3)
    queue.put(record(1000))
    queue.flush()

    name = f"consumequeue/T/3/{FILE_BYTES:020d}"
    assert disk.list("consumequeue/T/3") == [name.rpartition("/")[2]]
    assert disk.read(name, 0, 4 * ENTRY_BYTES) == BLANK_ENTRY * 3 + ENTRY.pack(1000, 100, 7)
    assert BLANK_ENTRY.hex() == "0000000000000000" + "7fffffff" + "0000000000000000"
    again = reloaded(disk)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (PER_FILE + 3, PER_FILE + 4)


@pytest.mark.parametrize("log_min", [0, 1, 100, 450, 1100, 5000])
def test_the_minimum_is_the_first_entry_whose_record_is_in_the_log(log_min: int) -> None:
    queue = new_queue()
    put(queue, 20)
    queue.flush()
    queue.correct_min_offset(log_min)

    assert queue.min_offset == min(-(-log_min // 100), 20)


def test_the_minimum_offset_never_decreases() -> None:
    queue = new_queue()
    put(queue, 20)
    queue.correct_min_offset(1000)
    queue.correct_min_offset(0)

    assert queue.min_offset == 10


@given(st.integers(0, 30))
def test_the_end_is_found_by_binary_search(count: int) -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    put(queue, count)
    queue.flush()

    assert reloaded(disk).max_offset == count


def test_after_a_crash_the_end_follows_the_last_entry_below_a_position() -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    put(queue, 14)
    queue.flush()
    name = f"consumequeue/T/3/{FILE_BYTES:020d}"

    assert queue.find_end_before(10_000) == 14
    assert queue.find_end_before(900) == 9
    assert queue.find_end_before(300) == 3
    disk.write(name, 7 * ENTRY_BYTES, [ENTRY.pack(900, 100, 7)])
    assert queue.find_end_before(10_000) == 14  # an entry out of order does not end the queue
    disk.write(name, 0, [bytes(FILE_BYTES)])
    assert queue.find_end_before(10_000) == 8


@pytest.mark.parametrize("count", [14, 16, 500])
def test_a_damaged_entry_does_not_count_as_the_end(count: int) -> None:
    disk = SimDisk()
    queue = SimpleQueue(disk, "T", 3, 1000 * ENTRY_BYTES)
    put(queue, count)
    queue.flush()
    name = queue.segments.name(0)
    for index in range(count - 1):
        good = disk.read(name, index * ENTRY_BYTES, ENTRY_BYTES)
        disk.write(name, index * ENTRY_BYTES, [b"\xff" * ENTRY_BYTES])
        assert queue.find_end_before(1 << 40) == queue.find_end() == count
        disk.write(name, index * ENTRY_BYTES, [good])


def test_readers_on_other_threads_see_whole_entries_while_the_queue_grows() -> None:
    queue = new_queue()
    put(queue, 1)
    wrong: list[QueueEntry | None] = []
    is_done = threading.Event()

    def read() -> None:
        while not is_done.is_set():
            for offset in (0, queue.max_offset - 1, queue.max_offset // 2):
                entry = queue.entry(offset)
                if entry != (offset * 100, 100, 7):
                    wrong.append(entry)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        put(queue, 1)
        if number % 3 == 0:
            queue.flush()
    is_done.set()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_run_of_records_gives_the_same_entries_as_single_records() -> None:
    records = [AppendedRecord(100 * n, 5 + n, 100 + n, "T", 3, -n, 9) for n in range(4)]
    entries = b"".join(ENTRY.pack(one.physical_offset, one.size, one.tags_code) for one in records)
    run = AppendedBatch(0, 5, 406, "T", 3, 9, 4, entries)
    assert list(run.records()) == records
    assert (run.last, run.end) == (records[-1], 406)
    assert records[0].last is records[0]
    assert records[0].records() == (records[0],)
    one_by_one, at_once = new_queue(), new_queue()
    for record in records:
        one_by_one.put(record)
    at_once.put_batch(run)
    assert at_once.read(0, 100) == one_by_one.read(0, 100)
    assert at_once.max_offset == one_by_one.max_offset == 4
