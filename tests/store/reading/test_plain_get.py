"""A read of messages that are all wanted gets what the ordinary read gets, or is left to that."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from kourou.store.formats import ENTRY_BYTES
from kourou.store.message_store import Asked
from kourou.store.reading.plain_get import PlainGet
from kourou.testing.disk import SimDisk
from tests.store.reading.test_checked_get import LONG_FILES, spoil
from tests.store.rig import CONFIG, Rig, delete_topic

SMALL = replace(CONFIG, commitlog_segment_bytes=1 << 14, consumequeue_file_bytes=20 * 30)


def plain(rig: Rig, offset: int = 0, count: int = 32, max_bytes: int = 1 << 20) -> bytes | None:
    """Return the records that the read hands out; None if it leaves the reader to the other."""
    found = rig.store.get_plain("T", 0, offset, count, max_bytes)
    return None if found is None else b"".join(found.records)


@pytest.mark.parametrize("seed", range(6))
def test_it_hands_out_what_the_ordinary_read_does(seed: int) -> None:
    dice = random.Random(seed)
    rig = Rig(config=SMALL)
    for _ in range(150):
        for _ in range(dice.choice((1, 1, 8))):
            rig.append(b"b" * dice.choice((0, 30, 700)), queue_id=dice.choice((0, 0, 1)))
        rig.commit()
    end, count = rig.store.max_offset("T", 0), 0

    for _ in range(300):
        at, most = dice.randrange(-1, end + 2), dice.choice((1, 3, 32, 64, 65))
        max_bytes = dice.choice((1, 1000, 1 << 20))
        found = rig.store.get_plain("T", 0, at, most, max_bytes)
        if found is not None:
            ordinary = rig.store.get_resident("T", 0, Asked(at, most, max_bytes, None))
            assert ordinary is not None
            assert b"".join(found.records) == ordinary.body
            assert found.size == len(ordinary.body)
            assert found[:3] == ordinary.plan[1:4]
            assert ordinary.plan.count == found.next_offset - at
            count += 1

    assert count > 50
    rig.store.close(rig.now_ms)


def test_messages_of_one_queue_alone_are_one_piece(rig: Rig) -> None:
    records = [rig.put(b"a"), rig.put(b"b")]

    found = rig.store.get_plain("T", 0, 0, 32, 1 << 20)

    assert found is not None
    assert [len(piece) for piece in found.records] == [sum(record.size for record in records)]


def test_what_was_there_at_the_start_is_compared() -> None:
    for is_spoiled in (False, True):
        rig = Rig(config=LONG_FILES)
        for number in range(5):
            rig.put(b"body-%d" % number)
        rig.reopen()
        rig.put()
        if is_spoiled:
            spoil(rig, b"body-3")

        found = plain(rig)

        assert (found is None) == is_spoiled, "the ordinary read says what is wrong"
        assert found is None or found.count(b"body-") == 5
        assert plain(rig, 4) is not None
        assert plain(rig, 0, 3) is not None


def reads_of(rig: Rig, believed_bytes: int) -> Callable[[], bytes | None]:
    """Return a read of a queue's first messages that believes so many bytes of the log."""
    queue = rig.store._queues.get("T", 0)
    reads = PlainGet(rig.store._log, LONG_FILES.delay_levels_ms, believed_bytes=believed_bytes)

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


def test_what_was_written_long_ago_is_compared() -> None:
    rig = stored()
    believing, doubting = reads_of(rig, 1 << 20), reads_of(rig, 100)

    assert believing() == doubting() is not None
    spoil(rig, b"body-0")
    assert doubting() is None


@pytest.mark.parametrize("believed_bytes", [0, 100, 1 << 20])
def test_how_much_is_believed_can_be_told(believed_bytes: int) -> None:
    rig = Rig(config=replace(LONG_FILES, believed_bytes=believed_bytes))
    for number in range(5):
        rig.put(b"body-%d" % number)

    spoil(rig, b"body-0")

    is_compared = believed_bytes == 100
    assert (plain(rig) is None) == is_compared
    found = rig.store.get_resident("T", 0, Asked(0, 32, 1 << 20, None))
    assert (found is None) == is_compared
    assert found is None or not found.plan.wanted


def test_what_was_compared_just_before_is_believed_until_so_much_is_written() -> None:
    rig = stored(reopened=True)
    read = reads_of(rig, 2000)
    whole = read()
    spoil(rig, b"body-3")  # which a device does only to what left the memory
    believed = read()
    assert believed is not None
    assert believed.replace(b"Xody", b"body") == whole

    for _ in range(16):
        rig.put()
    assert read() is None


def test_what_is_compared_of_other_queues_counts_as_well() -> None:
    rig = stored()
    rig.put(b"x" * 1500, queue_id=1)
    rig.reopen()
    queues = [rig.store._queues.get("T", queue_id) for queue_id in (0, 1)]
    reads = PlainGet(rig.store._log, LONG_FILES.delay_levels_ms, believed_bytes=2000)
    assert reads.get(queues[0], 0, 5, 1 << 20) is not None
    assert reads.get(queues[1], 0, 1, 1 << 20) is not None

    spoil(rig, b"body-3")

    assert reads.get(queues[0], 0, 5, 1 << 20) is None


def test_a_damaged_record_is_not_taken_for_compared() -> None:
    rig = stored(reopened=True)
    spoil(rig, b"body-3")
    for _ in range(3):
        assert plain(rig) is None


def test_an_entry_that_was_found_anew_is_read_anew() -> None:
    rig = stored(reopened=True)
    name = "consumequeue/T/0/" + "0" * 20
    entry = rig.disk.read(name, 2 * ENTRY_BYTES, ENTRY_BYTES)
    rig.disk.write(name, 2 * ENTRY_BYTES, [rig.disk.read(name, 0, ENTRY_BYTES)])
    assert plain(rig) is None

    rig.store.mend(rig.store.get("T", 0, Asked(0, 32, 1 << 20, None)).mended)

    assert rig.disk.read(name, 2 * ENTRY_BYTES, ENTRY_BYTES) == entry
    whole = plain(rig)
    assert whole is not None
    assert whole.count(b"body-") == 5


def test_a_topic_made_anew_has_nothing_of_the_one_before() -> None:
    rig = stored(reopened=True)
    before = plain(rig)
    rig.tick()
    delete_topic(rig.store, "T")
    assert plain(rig) is None
    for number in range(5):
        rig.put(b"new-%d" % number)

    after = plain(rig)

    assert before is not None
    assert after is not None
    assert (after.count(b"body-"), after.count(b"new-")) == (0, 5)


def test_a_queue_that_is_not_there_is_left(rig: Rig) -> None:
    rig.put(queue_id=1)

    assert plain(rig) is None


def test_what_is_not_shown_yet_is_left(rig: Rig) -> None:
    rig.append()

    assert plain(rig) is None


def test_limits_of_older_messages_are_left_to_the_ordinary_read() -> None:
    rig = Rig(config=replace(CONFIG, resident_bytes=1))
    rig.put()

    assert plain(rig) is None
    rig.store.close(rig.now_ms)


def test_a_device_that_fails_is_left_to_be_told_of() -> None:
    class Failing(SimDisk):
        is_failing = False

        def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
            if self.is_failing:
                raise OSError(errno.EIO, "the device fails")
            return super().read_resident(name, offset, size)

    disk = Failing()
    rig = Rig(disk)
    rig.put()
    assert plain(rig) is not None

    disk.is_failing = True
    assert plain(rig) is None
    disk.is_failing = False
    rig.store.close(rig.now_ms)
