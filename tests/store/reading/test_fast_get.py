"""The fast path of reads returns the same as the general path, or None."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from kourou.store.formats import ENTRY_BYTES
from kourou.store.message_store import GetRequest
from kourou.store.reading.fast_get import FastGet
from kourou.testing.disk import SimDisk
from tests.store.reading.test_verified_get import LONG_FILES, spoil
from tests.store.rig import CONFIG, Rig, delete_topic

SMALL = replace(CONFIG, commitlog_segment_bytes=1 << 14, consumequeue_file_bytes=20 * 30)


def fast(rig: Rig, offset: int = 0, count: int = 32, max_bytes: int = 1 << 20) -> bytes | None:
    """Return the records from the fast path; None if it leaves the read to the general path."""
    found = rig.store.reader.get_fast("T", 0, offset, count, max_bytes)
    return None if found is None else b"".join(found.records)


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_path_returns_the_same_as_the_general_path(seed: int) -> None:
    dice = random.Random(seed)
    rig = Rig(config=SMALL)
    for _ in range(150):
        for _ in range(dice.choice((1, 1, 8))):
            rig.append(b"b" * dice.choice((0, 30, 700)), queue_id=dice.choice((0, 0, 1)))
        rig.commit()
    end, count = rig.store.reader.max_offset("T", 0), 0

    for _ in range(300):
        at, most = dice.randrange(-1, end + 2), dice.choice((1, 3, 32, 256, 257))
        max_bytes = dice.choice((1, 1000, 1 << 20))
        found = rig.store.reader.get_fast("T", 0, at, most, max_bytes)
        if found is not None:
            ordinary = rig.store.reader.get_resident("T", 0, GetRequest(at, most, max_bytes, None))
            assert ordinary is not None
            assert b"".join(found.records) == ordinary.body
            assert found.size == len(ordinary.body)
            assert found[:3] == ordinary.plan[1:4]
            assert ordinary.plan.count == found.next_offset - at
            count += 1

    assert count > 50
    rig.store.close(rig.now_ms)


def test_large_reads_of_interleaved_queues_are_served() -> None:
    rig = Rig(
        config=replace(
            CONFIG, commitlog_segment_bytes=1 << 22, consumequeue_file_bytes=ENTRY_BYTES * 1_000
        )
    )
    for number in range(1_200):
        rig.append(b"b" * 1_000, queue_id=number % 4)
    rig.commit()

    ordinary = rig.store.reader.get_resident("T", 0, GetRequest(3, 256, 1 << 20, None))
    assert ordinary is not None
    assert ordinary.plan.count == 256
    assert fast(rig, 3, 256) == ordinary.body
    assert fast(rig, 3, 257) is None
    rig.store.close(rig.now_ms)


def test_adjacent_messages_are_one_view(rig: Rig) -> None:
    records = [rig.put(b"a"), rig.put(b"b")]

    found = rig.store.reader.get_fast("T", 0, 0, 32, 1 << 20)

    assert found is not None
    assert [len(piece) for piece in found.records] == [sum(record.size for record in records)]


def test_records_from_before_the_start_are_verified() -> None:
    for is_spoiled in (False, True):
        rig = Rig(config=LONG_FILES)
        for number in range(5):
            rig.put(b"body-%d" % number)
        rig.reopen()
        rig.put()
        if is_spoiled:
            spoil(rig, b"body-3")

        found = fast(rig)

        assert (found is None) == is_spoiled, "the general path reports the damage"
        assert found is None or found.count(b"body-") == 5
        assert fast(rig, 4) is not None
        assert fast(rig, 0, 3) is not None


def reads_of(rig: Rig, believed_bytes: int) -> Callable[[], bytes | None]:
    """Return a read of a queue's first messages with the given `believed_bytes`."""
    queue = rig.store.files.queues.get("T", 0)
    reads = FastGet(rig.store.files.log, LONG_FILES.delay_levels_ms, believed_bytes=believed_bytes)

    def read() -> bytes | None:
        found = reads.get(queue, 0, 5, 1 << 20)
        return None if found is None else b"".join(found.records)

    return read


def stored(*, reopened: bool = False) -> Rig:
    rig = Rig(config=LONG_FILES)
    for number in range(5):
        rig.put(b"body-%d" % number)
    if reopened:
        rig.reopen()
    return rig


def test_records_written_long_ago_are_verified() -> None:
    rig = stored()
    believing, doubting = reads_of(rig, 1 << 20), reads_of(rig, 100)

    assert believing() == doubting() is not None
    spoil(rig, b"body-0")
    assert doubting() is None


@pytest.mark.parametrize("believed_bytes", [0, 100, 1 << 20])
def test_believed_bytes_are_configurable(believed_bytes: int) -> None:
    rig = Rig(config=replace(LONG_FILES, believed_bytes=believed_bytes))
    for number in range(5):
        rig.put(b"body-%d" % number)

    spoil(rig, b"body-0")

    is_verified = believed_bytes == 100
    assert (fast(rig) is None) == is_verified
    found = rig.store.reader.get_resident("T", 0, GetRequest(0, 32, 1 << 20, None))
    assert (found is None) == is_verified
    assert found is None or not found.plan.expected


def test_verified_records_are_trusted_until_enough_is_written() -> None:
    rig = stored(reopened=True)
    read = reads_of(rig, 2000)
    whole = read()
    spoil(rig, b"body-3")  # stands for a device error after an eviction
    trusted = read()
    assert trusted is not None
    assert trusted.replace(b"Xody", b"body") == whole

    for _ in range(16):
        rig.put()
    assert read() is None


def test_verified_bytes_of_other_queues_count_as_well() -> None:
    rig = stored()
    rig.put(b"x" * 1500, queue_id=1)
    rig.reopen()
    queues = [rig.store.files.queues.get("T", queue_id) for queue_id in (0, 1)]
    reads = FastGet(rig.store.files.log, LONG_FILES.delay_levels_ms, believed_bytes=2000)
    assert reads.get(queues[0], 0, 5, 1 << 20) is not None
    assert reads.get(queues[1], 0, 1, 1 << 20) is not None

    spoil(rig, b"body-3")

    assert reads.get(queues[0], 0, 5, 1 << 20) is None


def test_a_damaged_record_is_not_recorded_as_verified() -> None:
    rig = stored(reopened=True)
    spoil(rig, b"body-3")
    for _ in range(3):
        assert fast(rig) is None


def test_a_repaired_entry_is_read_again() -> None:
    rig = stored(reopened=True)
    name = "consumequeue/T/0/" + "0" * 20
    entry = rig.disk.read(name, 2 * ENTRY_BYTES, ENTRY_BYTES)
    rig.disk.write(name, 2 * ENTRY_BYTES, [rig.disk.read(name, 0, ENTRY_BYTES)])
    assert fast(rig) is None

    rig.store.writer.write_repaired(
        rig.store.reader.get("T", 0, GetRequest(0, 32, 1 << 20, None)).repaired
    )

    assert rig.disk.read(name, 2 * ENTRY_BYTES, ENTRY_BYTES) == entry
    whole = fast(rig)
    assert whole is not None
    assert whole.count(b"body-") == 5


def test_a_recreated_topic_uses_no_cache_of_the_old_one() -> None:
    rig = stored(reopened=True)
    before = fast(rig)
    rig.tick()
    delete_topic(rig.store, "T")
    assert fast(rig) is None
    for number in range(5):
        rig.put(b"new-%d" % number)

    after = fast(rig)

    assert before is not None
    assert after is not None
    assert (after.count(b"body-"), after.count(b"new-")) == (0, 5)


def test_a_missing_queue_is_left_to_the_general_path(rig: Rig) -> None:
    rig.put(queue_id=1)

    assert fast(rig) is None


def test_invisible_messages_are_left_to_the_general_path(rig: Rig) -> None:
    rig.append()

    assert fast(rig) is None


def test_cold_limits_are_left_to_the_general_path() -> None:
    rig = Rig(config=replace(CONFIG, resident_bytes=1))
    rig.put()

    assert fast(rig) is None
    rig.store.close(rig.now_ms)


def test_a_device_error_is_left_to_the_general_path() -> None:
    class Failing(SimDisk):
        is_failing = False

        def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
            if self.is_failing:
                raise OSError(errno.EIO, "the device fails")
            return super().read_resident(name, offset, size)

    disk = Failing()
    rig = Rig(disk)
    rig.put()
    assert fast(rig) is not None

    disk.is_failing = True
    assert fast(rig) is None
    disk.is_failing = False
    rig.store.close(rig.now_ms)
