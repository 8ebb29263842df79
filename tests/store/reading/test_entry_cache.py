"""Cached entries equal those in the queue's files."""

from __future__ import annotations

import random

from kourou.store.formats import ENTRY, ENTRY_BYTES
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.simple_queue import SimpleQueue
from kourou.store.reading.fast_get import EntryCache
from kourou.testing.disk import SimDisk

LONG_FILE_BYTES = 400 * ENTRY_BYTES


class CountingDisk(SimDisk):
    """Counts the reads of queue files; while it is cold, no file is in memory."""

    reads = 0
    is_cold = False
    cold_from = 1 << 40

    def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
        if name.startswith("consumequeue"):
            self.reads += 1
            if self.is_cold or offset + size > self.cold_from:
                return None
        return super().read_resident(name, offset, size)


def appended(number: int) -> AppendedRecord:
    return AppendedRecord(
        physical_offset=number * 100, queue_offset=number, size=100, topic="T", queue_id=0,
        tags_code=0, store_at_ms=0,
    )  # fmt: skip


def filled(count: int, *, flushed: int | None = None) -> tuple[SimpleQueue, CountingDisk]:
    """Return a queue with the given number of entries, the first of them flushed to its files."""
    disk = CountingDisk()
    queue = SimpleQueue(disk, "T", 0, LONG_FILE_BYTES)
    flushed = count if flushed is None else flushed
    for number in range(count):
        if number == flushed:
            queue.flush()
        queue.put(appended(number))
    if flushed == count:
        queue.flush()
    return queue, disk


def read(cache: EntryCache, queue: SimpleQueue, offset: int, count: int) -> list[int] | None:
    """Return the offsets of the found entries."""
    found = cache.read(queue, offset, count)
    if found is None:
        return None
    data, at = found
    fields = ENTRY.iter_unpack(data[at : at + count * ENTRY_BYTES])
    return [position // 100 for position, _, _ in fields]


def test_a_sequential_read_of_a_queue_takes_few_calls() -> None:
    queue, disk = filled(400)
    cache = EntryCache()
    for offset in range(0, 400, 25):
        assert read(cache, queue, offset, 25) == list(range(offset, offset + 25))
    assert disk.reads == 2


def test_reads_at_any_offset_return_the_entries() -> None:
    dice = random.Random(1)
    queue, _ = filled(1000, flushed=930)
    cache = EntryCache()
    for _ in range(500):
        offset = dice.randrange(999)
        count = min(dice.choice((1, 3, 32)), 1000 - offset, 400 - offset % 400)
        assert read(cache, queue, offset, count) == list(range(offset, offset + count))


def test_new_entries_are_found_after_cached_ones() -> None:
    queue, disk = filled(10)
    cache = EntryCache()
    assert read(cache, queue, 0, 10) == list(range(10))
    for number in range(10, 20):
        queue.put(appended(number))
    assert read(cache, queue, 5, 10) == list(range(5, 15))
    queue.flush()
    assert read(cache, queue, 5, 15) == list(range(5, 20))
    assert disk.reads == 3


def test_a_dropped_block_is_read_again() -> None:
    queue, disk = filled(20)
    cache = EntryCache()
    disk.write(queue.segments.name(0), 3 * ENTRY_BYTES, [bytes(ENTRY_BYTES)])
    assert read(cache, queue, 3, 1) == [0]
    disk.write(queue.segments.name(0), 3 * ENTRY_BYTES, [ENTRY.pack(300, 100, 0)])
    cache.drop(queue)
    assert read(cache, queue, 3, 1) == [3]


def test_a_read_never_waits_for_the_device() -> None:
    queue, disk = filled(100)
    disk.is_cold = True
    assert read(EntryCache(), queue, 0, 10) is None
    disk.is_cold, disk.cold_from = False, 20 * ENTRY_BYTES
    cache = EntryCache()
    assert read(cache, queue, 0, 20) == list(range(20)), "although later entries are not in memory"
    assert read(cache, queue, 0, 21) is None


def test_a_truncated_file_returns_none() -> None:
    queue, disk = filled(100)
    disk.truncate(queue.segments.name(0), 10 * ENTRY_BYTES + 7)
    cache = EntryCache()
    assert read(cache, queue, 0, 10) == list(range(10))
    assert read(cache, queue, 5, 6) is None


def test_the_number_of_blocks_is_bounded() -> None:
    disk = CountingDisk()
    queues = [SimpleQueue(disk, "T", number, LONG_FILE_BYTES) for number in range(513)]
    cache = EntryCache()
    for queue in queues:
        queue.put(appended(0))
        queue.flush()
        assert read(cache, queue, 0, 1) == [0]
    for queue, reads in ((queues[-1], 0), (queues[1], 0), (queues[0], 1), (queues[2], 1)):
        before = disk.reads
        assert read(cache, queue, 0, 1) == [0]
        assert disk.reads - before == reads
