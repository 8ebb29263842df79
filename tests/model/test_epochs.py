"""Epochs of a log: which parts of two logs are equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import EpochError
from kourou.model.epochs import NO_EPOCH, POSITION_MAX, EpochEntry, EpochList


def epochs(*entries: tuple[int, int]) -> EpochList:
    return EpochList(EpochEntry(*entry) for entry in entries)


def listed(found: EpochList) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in found]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([(2, 0), (2, 10)], "epoch 2 from position 10 must not follow epoch 2"),
        ([(1, 10), (2, 10)], "epoch 2 from position 10 must not follow epoch 1"),
        ([(-1, 0)], "epoch -1 is not in 0"),
        ([(2**31, 0)], "epoch 2147483648 is not in 0"),
        ([(1, -1)], "the start of epoch 1 from position -1"),
    ],
)
def test_entries_that_no_log_can_have_are_refused(
    entries: list[tuple[int, int]], text: str
) -> None:
    with pytest.raises(EpochError, match=text):
        epochs(*entries)


def test_a_new_epoch_begins_at_the_end_of_the_log() -> None:
    one = EpochList().begin(3, 0)

    assert (EpochList().last_epoch, one.last_epoch) == (NO_EPOCH, 3)
    assert listed(one.begin(5, 100)) == [(3, 0), (5, 100)]
    with pytest.raises(EpochError, match="epoch 3 from position 100 is not newer than epoch 3"):
        one.begin(3, 100)


def test_an_epoch_without_records_is_replaced_by_the_next() -> None:
    assert listed(epochs((1, 0), (2, 50)).begin(3, 50)) == [(1, 0), (3, 50)]


def test_an_epoch_must_not_begin_within_an_older_one() -> None:
    with pytest.raises(EpochError, match="must not follow"):
        epochs((1, 0), (2, 50)).begin(3, 40)


def test_a_position_is_in_one_epoch() -> None:
    found = epochs((1, 10), (4, 50))

    assert found.at(9) is None
    assert found.at(10) == found.at(49) == (EpochEntry(1, 10), 50)
    assert found.at(50) == (EpochEntry(4, 50), POSITION_MAX)


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "common"),
    [
        ([(1, 0)], 100, [(1, 0)], 300, 100),
        ([(1, 0)], 300, [(1, 0)], 100, 100),
        ([(1, 0)], 300, [(1, 0), (2, 200)], 500, 200),
        ([(1, 0), (2, 200)], 300, [(1, 0), (3, 180)], 500, 180),
        ([(1, 0), (2, 200)], 300, [(1, 0), (3, 250)], 500, 200),
        ([(1, 0), (2, 200), (4, 300)], 400, [(1, 0), (2, 200), (3, 280)], 500, 280),
        ([(2, 0)], 300, [(1, 0)], 500, None),
        ([(1, 0)], 300, [(2, 0)], 0, 0),
        ([(1, 50), (2, 90)], 300, [(3, 50), (4, 80)], 500, 50),
        ([(1, 0), (4, 90)], 300, [(3, 0)], 500, None),
        ([(1, 10)], 300, [(2, 0)], 500, None),
        ([(0, 0)], 300, [(1, 0)], 500, None),
        ([(1, 10)], 300, [(1, 0)], 500, None),
        ([], 300, [(1, 0)], 500, None),
        ([(1, 0)], 300, [], 0, None),
        ([(1, 0), (2, 200)], 300, [(2, 200)], 250, 250),
        ([(1, 0), (2, 200)], 150, [(1, 0), (2, 200)], 500, 150),
    ],
)
def test_logs_are_equal_up_to_the_newest_common_epoch(
    own: list[tuple[int, int]],
    own_end: int,
    other: list[tuple[int, int]],
    other_end: int,
    common: int | None,
) -> None:
    assert epochs(*own).common_end(own_end, epochs(*other), other_end) == common


@given(
    st.lists(st.integers(1, 50), max_size=4),
    st.lists(st.integers(1, 50), max_size=4),
    st.lists(st.integers(1, 50), max_size=4),
)
def test_common_end_is_where_two_histories_part(
    shared: list[int], own: list[int], other: list[int]
) -> None:
    """Each list gives the sizes of epochs: first shared ones, then those of either master."""
    found, end = EpochList().begin(1, 0), 7
    for number, size in enumerate(shared):
        found, end = found.begin(2 + number, end), end + size
    sides = []
    for parity, sizes in ((0, own), (1, other)):
        side, side_end = found, end
        for number, size in enumerate(sizes):
            side, side_end = side.begin(100 + 2 * number + parity, side_end), side_end + size
        sides.append((side, side_end))
    (one, one_end), (two, two_end) = sides

    assert one.common_end(one_end, two, two_end) == end
    assert two.common_end(two_end, one, one_end) == end


def test_a_truncated_log_loses_the_epochs_from_its_new_end_on() -> None:
    found = epochs((1, 0), (2, 50), (3, 80))

    assert listed(found.cut(81)) == [(1, 0), (2, 50), (3, 80)]
    assert listed(found.cut(80)) == [(1, 0), (2, 50)]
    assert listed(found.cut(0)) == []


def test_an_expired_part_of_the_log_loses_its_epochs() -> None:
    found = epochs((1, 0), (2, 50), (3, 80))

    assert listed(found.expire(49)) == [(1, 0), (2, 50), (3, 80)]
    assert listed(found.expire(50)) == [(2, 50), (3, 80)]
    assert listed(found.expire(500)) == [(3, 80)]
