"""Verified ranges are valid until `believed_bytes` have been written and verified since."""

from __future__ import annotations

from kourou.store.queues.simple_queue import SimpleQueue
from kourou.store.reading.compared import Compared
from kourou.testing.disk import SimDisk

BELIEVED = 1600


def queue(queue_id: int = 0) -> SimpleQueue:
    return SimpleQueue(SimDisk(), "T", queue_id, 200)


def test_a_part_of_a_verified_range_is_verified() -> None:
    one, compared = queue(), Compared(BELIEVED)
    compared.add(one, 10, 20, 0, 10)
    assert compared.holds(one, 10, 20, 0)
    assert compared.holds(one, 13, 15, 0)
    assert not compared.holds(one, 9, 15, 0)
    assert not compared.holds(one, 15, 21, 0)
    assert not compared.holds(queue(), 13, 15, 0), "another queue, even of the same name"


def test_adjacent_ranges_are_joined() -> None:
    one, compared = queue(), Compared(BELIEVED)
    compared.add(one, 10, 20, 0, 10)
    compared.add(one, 0, 5, 0, 10)
    compared.add(one, 20, 30, 0, 10)
    assert compared.holds(one, 15, 25, 0)
    assert compared.holds(one, 0, 5, 0)
    assert not compared.holds(one, 4, 11, 0)


def test_a_range_expires_after_enough_written_bytes() -> None:
    one, compared = queue(), Compared(BELIEVED)
    compared.add(one, 0, 10, 5000, 0)
    assert compared.holds(one, 0, 10, 5000 + BELIEVED)
    assert not compared.holds(one, 0, 10, 5001 + BELIEVED)


def test_a_range_expires_after_enough_verified_bytes() -> None:
    one, two, compared = queue(), queue(1), Compared(BELIEVED)
    compared.add(one, 0, 10, 0, 600)
    compared.add(two, 0, 10, 0, 1000)
    assert compared.holds(one, 0, 10, 0)
    compared.add(two, 10, 20, 0, 1)
    assert not compared.holds(one, 0, 10, 0)
    assert compared.holds(two, 0, 10, 0)


def test_a_long_range_expires_in_parts() -> None:
    one, compared = queue(), Compared(BELIEVED)
    for offset in range(0, 1000, 10):
        compared.add(one, offset, offset + 10, 0, 50)
    held = [offset for offset in range(0, 1000, 10) if compared.holds(one, offset, offset + 10, 0)]
    assert held == list(range(held[0], 1000, 10)), "only the latest ranges are valid"
    assert BELIEVED - 200 <= len(held) * 50 <= BELIEVED


def test_the_number_of_ranges_is_bounded() -> None:
    compared = Compared(BELIEVED)
    queues = [queue(number) for number in range(1030)]
    for one in queues:
        compared.add(one, 0, 1, 0, 0)
    assert [compared.holds(one, 0, 1, 0) for one in queues] == [False] * 6 + [True] * 1024
    for offset in range(0, 100, 2):
        compared.add(queues[-1], offset, offset + 1, 0, 0)
    held = [compared.holds(queues[-1], offset, offset + 1, 0) for offset in range(0, 100, 2)]
    assert held == [False] * 18 + [True] * 32
