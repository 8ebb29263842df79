"""Verified ranges are valid until `believed_bytes` have been written and verified since."""

from __future__ import annotations

from kourou.store.queues.simple_queue import SimpleQueue
from kourou.store.reading.fast_get import VerifiedRanges
from kourou.testing.disk import SimDisk

BELIEVED = 1600


def queue(queue_id: int = 0) -> SimpleQueue:
    return SimpleQueue(SimDisk(), "T", queue_id, 200)


def test_a_part_of_a_verified_range_is_verified() -> None:
    one, ranges = queue(), VerifiedRanges(BELIEVED)
    ranges.add(one, 10, 20, 0, 10)
    assert ranges.covers(one, 10, 20, 0)
    assert ranges.covers(one, 13, 15, 0)
    assert not ranges.covers(one, 9, 15, 0)
    assert not ranges.covers(one, 15, 21, 0)
    assert not ranges.covers(queue(), 13, 15, 0), "another queue, even of the same name"


def test_adjacent_ranges_are_joined() -> None:
    one, ranges = queue(), VerifiedRanges(BELIEVED)
    ranges.add(one, 10, 20, 0, 10)
    ranges.add(one, 0, 5, 0, 10)
    ranges.add(one, 20, 30, 0, 10)
    assert ranges.covers(one, 15, 25, 0)
    assert ranges.covers(one, 0, 5, 0)
    assert not ranges.covers(one, 4, 11, 0)


def test_a_range_expires_after_enough_written_bytes() -> None:
    one, ranges = queue(), VerifiedRanges(BELIEVED)
    ranges.add(one, 0, 10, 5000, 0)
    assert ranges.covers(one, 0, 10, 5000 + BELIEVED)
    assert not ranges.covers(one, 0, 10, 5001 + BELIEVED)


def test_a_range_expires_after_enough_verified_bytes() -> None:
    one, two, ranges = queue(), queue(1), VerifiedRanges(BELIEVED)
    ranges.add(one, 0, 10, 0, 600)
    ranges.add(two, 0, 10, 0, 1000)
    assert ranges.covers(one, 0, 10, 0)
    ranges.add(two, 10, 20, 0, 1)
    assert not ranges.covers(one, 0, 10, 0)
    assert ranges.covers(two, 0, 10, 0)


def test_a_long_range_expires_in_parts() -> None:
    one, ranges = queue(), VerifiedRanges(BELIEVED)
    for offset in range(0, 1000, 10):
        ranges.add(one, offset, offset + 10, 0, 50)
    held = [offset for offset in range(0, 1000, 10) if ranges.covers(one, offset, offset + 10, 0)]
    assert held == list(range(held[0], 1000, 10)), "only the latest ranges are valid"
    assert BELIEVED - 200 <= len(held) * 50 <= BELIEVED


def test_the_number_of_ranges_is_bounded() -> None:
    ranges = VerifiedRanges(BELIEVED)
    queues = [queue(number) for number in range(1030)]
    for one in queues:
        ranges.add(one, 0, 1, 0, 0)
    assert [ranges.covers(one, 0, 1, 0) for one in queues] == [False] * 6 + [True] * 1024
    for offset in range(0, 100, 2):
        ranges.add(queues[-1], offset, offset + 1, 0, 0)
    held = [ranges.covers(queues[-1], offset, offset + 1, 0) for offset in range(0, 100, 2)]
    assert held == [False] * 18 + [True] * 32
