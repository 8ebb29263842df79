"""Tests of the ranges planned from options and from the bounds of queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue
from kourou.spark.planning import (
    TASK_ROWS_MIN,
    QueueBounds,
    QueueRange,
    pack_ranges,
    plan_ranges,
)

Q0 = MessageQueue("flights", "broker-a", 0)
Q1 = MessageQueue("flights", "broker-a", 1)


def test_ranges_are_sorted_by_queue_and_have_an_exclusive_end() -> None:
    plan = plan_ranges(
        {Q1: QueueBounds(0, 7), Q0: QueueBounds(3, 9)}, {Q0: 4, Q1: 0}, {Q0: 5, Q1: 7}
    )

    assert plan.ranges == (QueueRange(Q0, 4, 5), QueueRange(Q1, 0, 7))
    assert plan.losses == ()


def test_empty_queue_is_omitted() -> None:
    plan = plan_ranges(
        {Q0: QueueBounds(0, 0), Q1: QueueBounds(5, 5)}, {Q0: 0, Q1: 5}, {Q0: 0, Q1: 5}
    )

    assert plan.ranges == ()


def test_start_below_the_minimum_is_a_loss_and_is_clamped() -> None:
    plan = plan_ranges({Q0: QueueBounds(10, 20)}, {Q0: 3}, {Q0: 20})

    assert plan.ranges == (QueueRange(Q0, 10, 20),)
    [loss] = plan.losses
    assert "startingOffsets of queue 0 of 'flights' on 'broker-a' is 3" in loss
    assert "holds offsets 10 to 20" in loss


def test_offsets_above_the_maximum_are_losses() -> None:
    plan = plan_ranges({Q0: QueueBounds(0, 20)}, {Q0: 25}, {Q0: 30})

    assert plan.ranges == ()
    assert len(plan.losses) == 2


def test_end_below_the_minimum_reads_nothing() -> None:
    plan = plan_ranges({Q0: QueueBounds(10, 20)}, {Q0: 5}, {Q0: 5})

    assert plan.ranges == ()
    assert "endingOffsets" in plan.losses[1]


def test_a_start_above_its_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="is 6, above endingOffsets 5"):
        plan_ranges({Q0: QueueBounds(0, 9)}, {Q0: 6}, {Q0: 5})


def test_a_start_by_time_above_the_end_reads_nothing() -> None:
    options = ("startingTimestamp", "endingOffsets")

    plan = plan_ranges({Q0: QueueBounds(0, 9)}, {Q0: 6}, {Q0: 5}, options=options)

    assert (plan.ranges, plan.losses) == ((), ())


def test_few_rows_make_one_task() -> None:
    ranges = [QueueRange(Q0, 0, 9), QueueRange(Q1, 0, 9)]

    assert pack_ranges(ranges, 4) == [tuple(ranges)]


def test_no_rows_make_no_task() -> None:
    assert pack_ranges([], 4) == []


def test_long_queue_is_split_among_all_tasks() -> None:
    rows = 4 * TASK_ROWS_MIN

    groups = pack_ranges([QueueRange(Q0, 100, 100 + rows)], 2)

    assert groups == [
        (QueueRange(Q0, 100, 100 + rows // 2),),
        (QueueRange(Q0, 100 + rows // 2, 100 + rows),),
    ]


def test_a_minimum_of_tasks_splits_few_rows() -> None:
    groups = pack_ranges([QueueRange(Q0, 0, 9), QueueRange(Q1, 0, 3)], 8, tasks_min=3)

    assert groups == [
        (QueueRange(Q0, 0, 4),),
        (QueueRange(Q0, 4, 8),),
        (QueueRange(Q0, 8, 9), QueueRange(Q1, 0, 3)),
    ]


def test_there_are_no_more_tasks_than_rows() -> None:
    assert len(pack_ranges([QueueRange(Q0, 0, 2)], 8, tasks_min=5)) == 2


def test_a_maximum_of_rows_makes_more_tasks_than_the_maximum_of_tasks() -> None:
    groups = pack_ranges([QueueRange(Q0, 0, 100)], 2, rows_max=30)

    assert [len(piece) for [piece] in groups] == [25, 25, 25, 25]


@given(
    sizes=st.lists(st.integers(1, 40), max_size=9),
    tasks_max=st.integers(1, 9),
    tasks_min=st.integers(1, 9),
    rows_max=st.integers(1, 50),
)
def test_packing_obeys_minimum_of_tasks_and_maximum_of_rows(
    sizes: list[int], tasks_max: int, tasks_min: int, rows_max: int
) -> None:
    ranges = [QueueRange(MessageQueue("t", "b", i), 0, size) for i, size in enumerate(sizes)]

    groups = pack_ranges(ranges, max(tasks_max, tasks_min), tasks_min=tasks_min, rows_max=rows_max)

    loads = [sum(map(len, group)) for group in groups]
    assert len(groups) >= min(tasks_min, sum(sizes))
    assert max(loads, default=0) <= rows_max
    assert sum(loads) == sum(sizes)


@given(
    sizes=st.lists(st.integers(1, 5 * TASK_ROWS_MIN), max_size=20),
    tasks_max=st.integers(1, 9),
)
def test_packing_keeps_each_offset_once_in_groups_of_similar_size(
    sizes: list[int], tasks_max: int
) -> None:
    queues = [MessageQueue("t", "b", i) for i in range(len(sizes))]
    ranges = [QueueRange(queue, 7, 7 + size) for queue, size in zip(queues, sizes, strict=True)]

    groups = pack_ranges(ranges, tasks_max)

    pieces = [piece for group in groups for piece in group]
    position = dict.fromkeys(queues, 7)
    for piece in pieces:
        assert position[piece.queue] == piece.start < piece.until
        position[piece.queue] = piece.until
    assert position == {r.queue: r.until for r in ranges}
    assert pieces == sorted(pieces, key=lambda piece: (piece.queue, piece.start))
    loads = [sum(map(len, group)) for group in groups]
    assert len(groups) <= tasks_max
    assert max(loads, default=0) - min(loads, default=0) <= 1
    assert len(groups) <= 1 or min(loads) >= TASK_ROWS_MIN
