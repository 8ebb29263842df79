"""Revive records are paired in any order, and committed when their checkpoint is settled."""

from __future__ import annotations

import pytest

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.revive_window import DISORDER_MS, HeldCheckpoint, ReviveWindow

POP_MS = 1_000_000
REVIVE_MS = POP_MS + 60_000
CHECKPOINT_MS = REVIVE_MS - 1_000
KEY = CheckpointKey("T", "g", 0, 100, POP_MS, "b")


def checkpoint(*offsets: int, key: CheckpointKey = KEY) -> PopCheckpoint:
    return PopCheckpoint(key, offsets or (100, 101, 102), 60_000)


def opened(committed_offset: int = -1, **limits: int) -> ReviveWindow:
    return ReviveWindow(committed_offset, lambda _: True, **limits)


def due(window: ReviveWindow, level_ms: int = REVIVE_MS) -> list[HeldCheckpoint]:
    return window.due(level_ms, 100, is_at_end=True)


def unacked(found: list[HeldCheckpoint]) -> list[list[int]]:
    return [held.checkpoint.unacked() for held in found]


def test_messages_without_ack_are_due_when_their_time_is_over() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    window.read_ack(1, KEY, (101,), REVIVE_MS)

    assert window.next_due_ms == REVIVE_MS
    assert due(window, REVIVE_MS - 1) == []
    assert unacked(due(window)) == [[100, 102]]
    assert due(window) == []


def test_offset_is_committed_when_the_checkpoint_is_settled() -> None:
    window = opened(committed_offset=6)
    assert window.committable_offset == 6
    window.read_checkpoint(7, checkpoint(), CHECKPOINT_MS)
    window.read_ack(8, KEY, (101,), REVIVE_MS)
    assert window.committable_offset == 6

    [held] = due(window)
    assert window.committable_offset == 6
    window.settle(held)
    window.settle(held)
    assert window.committable_offset == 8
    assert window.checkpoint_count == 0


def test_settled_checkpoint_is_not_committed_before_an_earlier_one() -> None:
    window = opened()
    keys = [KEY._replace(start_offset=offset) for offset in (100, 200, 300)]
    for revive_offset, key in enumerate(keys):
        window.read_checkpoint(revive_offset, checkpoint(key[3], key=key), CHECKPOINT_MS)
    first, second, third = due(window)

    window.settle(second)
    assert window.committable_offset == -1
    window.settle(first)
    assert window.committable_offset == 1
    window.settle(third)
    assert window.committable_offset == 2


def test_settled_checkpoint_is_not_divided_from_acks_before_it() -> None:
    """After a restart behind its first ack, it would be read again without that."""
    window = opened()
    other = KEY._replace(start_offset=200)
    window.read_ack(0, KEY, (101,), REVIVE_MS, is_direct=True)
    window.read_checkpoint(1, checkpoint(200, key=other), CHECKPOINT_MS)
    window.read_ack(2, KEY, (100,), REVIVE_MS, is_direct=True)
    window.read_checkpoint(3, checkpoint(), CHECKPOINT_MS)
    later, found = sorted(due(window), key=lambda held: held.revive_offset)
    window.settle(found)
    assert window.committable_offset == -1

    window.settle(later)
    assert window.committable_offset == 3


def test_checkpoints_with_acks_before_them_are_committed_one_after_the_other() -> None:
    window = opened()
    keys = [KEY._replace(start_offset=offset) for offset in (100, 200)]
    window.read_ack(0, keys[0], (100,), REVIVE_MS, is_direct=True)
    window.read_ack(1, keys[1], (200,), REVIVE_MS, is_direct=True)
    window.read_checkpoint(2, checkpoint(100, 101, key=keys[0]), CHECKPOINT_MS)
    window.read_checkpoint(3, checkpoint(200, 201, key=keys[1]), CHECKPOINT_MS)
    first, second = sorted(due(window), key=lambda held: held.revive_offset)
    window.settle(first)
    assert window.committable_offset == -1

    window.settle(second)
    assert window.committable_offset == 3


def test_wholly_acknowledged_checkpoint_is_never_due() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    window.read_ack(1, KEY, (100, 101, 102), REVIVE_MS)

    assert due(window) == []
    assert window.committable_offset == 1


def test_ack_that_precedes_its_checkpoint_is_applied() -> None:
    window = opened()
    window.read_ack(0, KEY, (100,), REVIVE_MS)
    assert due(window, CHECKPOINT_MS - 1) == []
    assert (window.early_ack_count, window.committable_offset) == (1, -1)

    window.read_checkpoint(1, checkpoint(), CHECKPOINT_MS)
    [held] = due(window)
    assert held.checkpoint.unacked() == [101, 102]
    # After a restart the ack must be read again as well.
    assert window.committable_offset == -1
    window.settle(held)
    assert (window.early_ack_count, window.committable_offset) == (0, 1)


def test_checkpoint_that_no_timer_delivered_does_not_count_as_its_progress() -> None:
    """A timer that lags behind delivers acks after a checkpoint of a second or less."""
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    later = KEY._replace(start_offset=200, pop_time_ms=REVIVE_MS + 50_000)
    short = PopCheckpoint(later, (200,), 500)
    window.read_checkpoint(1, short, short.revive_at_ms - 1_000, is_direct=True)

    # The timer has caught up, and its ack is behind in the queue.
    assert window.due(short.revive_at_ms, 100, is_at_end=False) == []
    window.read_ack(2, KEY, (100, 101, 102), REVIVE_MS)
    assert unacked(due(window, short.revive_at_ms)) == [[200]]


def test_ack_whose_checkpoint_cannot_come_any_more_is_dropped() -> None:
    window = opened()
    window.read_ack(0, KEY, (100,), REVIVE_MS)
    assert (window.next_due_ms, window.next_step_ms) == (None, REVIVE_MS)

    due(window, REVIVE_MS)
    assert (window.early_ack_count, window.committable_offset) == (0, 0)
    assert window.next_step_ms is None


def test_earliest_of_too_many_acks_without_checkpoint_is_dropped() -> None:
    window = opened(early_acks_max=2)
    for revive_offset, offset in enumerate((100, 101, 102)):
        window.read_ack(revive_offset, KEY, (offset,), REVIVE_MS + revive_offset)
    window.read_checkpoint(3, checkpoint(), CHECKPOINT_MS)

    assert window.dropped_ack_count == 1
    assert unacked(due(window)) == [[100]]


def test_ack_counts_also_while_the_checkpoint_is_being_revived() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    [held] = due(window)
    window.read_ack(1, KEY, (102,), REVIVE_MS)

    assert held.checkpoint.unacked() == [100, 101]


def test_acks_of_other_checkpoints_and_offsets_change_nothing() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    others = [
        KEY._replace(topic="U"),
        KEY._replace(group="h"),
        KEY._replace(queue_id=1),
        KEY._replace(start_offset=10),
        KEY._replace(pop_time_ms=POP_MS + 1),
        KEY._replace(broker_name="c"),
    ]
    for revive_offset, key in enumerate(others, 1):
        window.read_ack(revive_offset, key, (100, 101, 102), REVIVE_MS)
    window.read_ack(7, KEY, (99, 103, 2**32 + 100), REVIVE_MS)

    assert unacked(due(window)) == [[100, 101, 102]]


def test_queue_and_offset_are_not_joined() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(11, key=CheckpointKey("T", "g", 1, 11, 5, "b")), 0)
    window.read_checkpoint(1, checkpoint(1, key=CheckpointKey("T", "g", 11, 1, 5, "b")), 0)
    window.read_ack(2, CheckpointKey("T", "g", 11, 1, 5, "b"), (1,), 0)

    assert unacked(due(window)) == [[11]]


def test_later_checkpoint_of_a_key_takes_over_common_messages_and_their_acks() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(100, 101, 102), CHECKPOINT_MS)
    window.read_ack(1, KEY, (101,), REVIVE_MS)
    again = PopCheckpoint(KEY, (100, 101), 70_000, re_puts=1)
    window.read_checkpoint(2, again, CHECKPOINT_MS + 10_000)

    [first] = due(window)
    assert first.checkpoint.unacked() == [102]
    window.settle(first)
    assert window.committable_offset == -1  # the ack belongs to the later one
    [second] = due(window, REVIVE_MS + 10_000)
    assert second.checkpoint.unacked() == [100]
    window.settle(second)
    assert window.committable_offset == 2


def test_ack_applies_to_all_checkpoints_of_its_key() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(100, 101), CHECKPOINT_MS)
    window.read_checkpoint(1, checkpoint(102, 103), CHECKPOINT_MS)
    window.read_ack(2, KEY, (101, 102), REVIVE_MS)

    assert unacked(due(window)) == [[100], [103]]


def test_checkpoint_read_twice_is_due_once() -> None:
    window = opened()
    for revive_offset in range(3):
        window.read_checkpoint(revive_offset, checkpoint(), CHECKPOINT_MS)

    assert unacked(due(window)) == [[100, 101, 102]]


def test_checkpoint_that_is_not_served_is_dropped_and_committed() -> None:
    window = ReviveWindow(-1, lambda checkpoint: checkpoint.key.topic == "T")
    window.read_checkpoint(0, checkpoint(key=KEY._replace(topic="Gone")), CHECKPOINT_MS)
    window.read_checkpoint(1, checkpoint(), CHECKPOINT_MS)

    [held] = due(window)
    assert held.checkpoint.key == KEY
    assert (window.unserved_count, window.committable_offset) == (1, 0)


def test_checkpoint_without_messages_is_passed() -> None:
    window = opened()
    window.read_checkpoint(0, PopCheckpoint(KEY, (), 60_000), CHECKPOINT_MS)

    assert due(window) == []
    assert window.committable_offset == 0


def test_deferred_checkpoint_is_due_again() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    [held] = due(window)
    window.defer(held, REVIVE_MS + 500)

    assert due(window, REVIVE_MS + 499) == []
    assert due(window, REVIVE_MS + 500) == [held]
    assert window.committable_offset == -1


def test_before_the_end_only_checkpoints_whose_acks_are_read_are_due() -> None:
    window = opened()
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    window.read_ack(1, KEY._replace(pop_time_ms=1), (1,), REVIVE_MS + DISORDER_MS - 1)
    assert window.due(2 * REVIVE_MS, 100, is_at_end=False) == []

    window.read_ack(2, KEY, (100,), REVIVE_MS + DISORDER_MS)
    assert window.due(REVIVE_MS - 1, 100, is_at_end=False) == []
    assert unacked(window.due(2 * REVIVE_MS, 100, is_at_end=False)) == [[101, 102]]


def test_full_window_returns_checkpoints_before_the_end() -> None:
    window = opened(checkpoints_max=2)
    window.read_checkpoint(0, checkpoint(), CHECKPOINT_MS)
    assert window.due(REVIVE_MS, 100, is_at_end=False) == []
    window.read_checkpoint(1, checkpoint(7, key=KEY._replace(start_offset=7)), CHECKPOINT_MS)

    found = window.due(REVIVE_MS, 100, is_at_end=False)
    assert len(found) == 2
    for held in found:
        window.settle(held)
    assert window.committable_offset == 1


def test_settled_checkpoints_behind_one_that_is_not_use_no_memory() -> None:
    window = opened()
    for offset in range(5_000):
        key = KEY._replace(start_offset=offset)
        window.read_checkpoint(offset, checkpoint(offset, key=key), CHECKPOINT_MS)
    stuck, *others = window.due(REVIVE_MS, 5_000, is_at_end=True)
    for held in others:
        window.settle(held)

    assert window.committable_offset == -1
    assert len(window._by_read) < 1_100
    window.settle(stuck)
    assert window.committable_offset == 4_999


def test_number_of_due_checkpoints_is_limited() -> None:
    window = opened()
    for offset in range(5):
        key = KEY._replace(start_offset=offset)
        window.read_checkpoint(offset, checkpoint(offset, key=key), CHECKPOINT_MS)

    assert len(window.due(REVIVE_MS, 3, is_at_end=True)) == 3
    assert len(window.due(REVIVE_MS, 3, is_at_end=True)) == 2


def test_other_and_missing_records_are_passed() -> None:
    window = opened(committed_offset=3)
    window.read_other(4)
    window.read_other(900)

    assert (window.committable_offset, window.next_offset) == (900, 901)
    with pytest.raises(ValueError, match="record 900 was read"):
        window.read_other(900)
