"""Messages in flight: acks, changes and counts agree with sets; due copies are skipped safely."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.in_flight import Acked, DueCopies, InFlight

POP_MS = 1_700_000_000_000
KEY = CheckpointKey("T", "g", 0, 100, POP_MS, "b")
CHANGED = KEY._replace(start_offset=101, pop_time_ms=POP_MS + 1)


def checkpoint(*offsets: int, key: CheckpointKey = KEY) -> PopCheckpoint:
    return PopCheckpoint(key, offsets or (100, 101, 102), 60_000)


@pytest.fixture
def in_flight() -> InFlight:
    held = InFlight("b")
    held.add(checkpoint())
    return held


def test_message_is_acknowledged_once(in_flight: InFlight) -> None:
    assert in_flight.is_in_flight(KEY, 101)
    assert in_flight.ack(KEY, 101) is Acked.NEWLY
    assert in_flight.ack(KEY, 101) is Acked.ALREADY
    assert not in_flight.is_in_flight(KEY, 101)
    assert in_flight.unacked(KEY) == [100, 102]
    assert in_flight.count("T", "g", 0) == in_flight.message_count == 2


def test_checkpoint_is_settled_by_its_last_ack(in_flight: InFlight) -> None:
    assert in_flight.ack_all(KEY, (102, 100, 102, 99, 103)) == [100, 102]
    assert in_flight.is_live(KEY)
    assert in_flight.revive_at_ms(KEY) == POP_MS + 60_000

    assert in_flight.ack(KEY, 101) is Acked.NEWLY
    assert not in_flight.is_live(KEY)
    assert in_flight.revive_at_ms(KEY) is None
    assert in_flight.ack(KEY, 101) is Acked.UNKNOWN
    assert in_flight.ack_all(KEY, (101,)) == []
    assert in_flight.counts() == {}
    assert (in_flight.checkpoint_count, in_flight.message_count) == (0, 0)


OTHERS = [
    KEY._replace(topic="U"),
    KEY._replace(group="h"),
    KEY._replace(queue_id=1),
    KEY._replace(start_offset=10),
    KEY._replace(pop_time_ms=POP_MS + 1),
    KEY._replace(broker_name="c"),
]


@pytest.mark.parametrize("key", OTHERS)
def test_key_that_differs_in_one_part_is_unknown(in_flight: InFlight, key: CheckpointKey) -> None:
    assert in_flight.ack(key, 100) is Acked.UNKNOWN
    assert in_flight.change(key, 100, checkpoint(100, key=CHANGED)) is Acked.UNKNOWN
    assert in_flight.settle(key) == 0
    assert in_flight.unacked(KEY) == [100, 101, 102]


@pytest.mark.parametrize("offset", [99, 103, 2**40, -1])
def test_offset_outside_the_checkpoint_changes_nothing(in_flight: InFlight, offset: int) -> None:
    assert in_flight.ack(KEY, offset) is Acked.ALREADY
    assert in_flight.unacked(KEY) == [100, 101, 102]


def test_filtered_messages_have_gaps() -> None:
    in_flight = InFlight("b")
    in_flight.add(checkpoint(103, 500, 2**31))

    assert in_flight.ack(KEY, 100) is Acked.ALREADY
    assert in_flight.ack(KEY, 500) is Acked.NEWLY
    assert in_flight.unacked(KEY) == [103, 2**31]
    assert in_flight.ack_all(KEY, (2**31, 103)) == [2**31, 103]
    assert not in_flight.is_live(KEY)


def test_checkpoint_of_another_broker_name_is_found_by_it() -> None:
    key = KEY._replace(broker_name="old-name")
    in_flight = InFlight("b")
    in_flight.add(checkpoint(key=key))

    assert in_flight.ack(KEY, 100) is Acked.UNKNOWN
    assert in_flight.ack(key, 100) is Acked.NEWLY
    assert list(in_flight.checkpoints("T", "g", 0)) == [(key, POP_MS + 60_000, [101, 102])]


def test_acknowledged_messages_of_a_record_are_not_in_flight() -> None:
    in_flight = InFlight("b")
    held = checkpoint()
    held.ack(100)
    in_flight.add(held)
    held.ack_all((101, 102))
    in_flight.add(held)

    assert in_flight.unacked(KEY) == [101, 102]


def test_changed_message_is_in_its_new_checkpoint(in_flight: InFlight) -> None:
    assert in_flight.change(KEY, 101, checkpoint(101, key=CHANGED)) is Acked.NEWLY
    assert not in_flight.is_in_flight(KEY, 101)
    assert in_flight.ack(KEY, 101) is Acked.ALREADY
    assert in_flight.ack_all(KEY, (101,)) == []
    again = checkpoint(101, key=CHANGED._replace(pop_time_ms=POP_MS + 2))
    assert in_flight.change(KEY, 101, again) is Acked.ALREADY

    in_flight.change_stored(KEY, 101)
    assert in_flight.unacked(KEY) == [100, 102]
    assert in_flight.unacked(CHANGED) == [101]
    assert in_flight.message_count == 3
    assert in_flight.ack(CHANGED, 101) is Acked.NEWLY


def test_change_that_is_not_stored_leaves_the_message_as_it_was(in_flight: InFlight) -> None:
    in_flight.change(KEY, 101, checkpoint(101, key=CHANGED))
    in_flight.change_failed(KEY, 101, CHANGED)

    assert not in_flight.is_live(CHANGED)
    assert in_flight.ack(KEY, 101) is Acked.NEWLY
    assert in_flight.message_count == 2


def test_revived_checkpoint_is_replaced_by_later_ones(in_flight: InFlight) -> None:
    now_ms = POP_MS + 60_000
    later = [checkpoint().re_put(offset, now_ms) for offset in (100, 102)]
    in_flight.revive(KEY, (100, 101, 102), later)

    assert in_flight.unacked(KEY) == [100]  # the first message's has the same key
    assert in_flight.revive_at_ms(KEY) == now_ms + 10_000
    assert in_flight.unacked(later[1].key) == [102]
    assert (in_flight.checkpoint_count, in_flight.message_count) == (2, 2)


def test_message_that_is_not_revived_stays_in_flight(in_flight: InFlight) -> None:
    in_flight.ack(KEY, 101)
    in_flight.revive(KEY, (100,))

    assert in_flight.unacked(KEY) == [102]
    assert in_flight.revive_at_ms(KEY) == POP_MS + 60_000
    in_flight.revive(KEY, (102,))
    assert not in_flight.is_live(KEY)
    in_flight.revive(KEY, (102,))
    assert in_flight.message_count == 0


def test_checkpoint_added_twice_has_all_messages(in_flight: InFlight) -> None:
    in_flight.ack(KEY, 100)
    in_flight.add(PopCheckpoint(KEY, (102, 107), 1))

    assert in_flight.unacked(KEY) == [101, 102, 107]
    assert in_flight.revive_at_ms(KEY) == POP_MS + 60_000
    assert (in_flight.checkpoint_count, in_flight.message_count) == (1, 3)


def test_ack_of_a_checkpoint_that_is_added_later_counts_during_a_recovery() -> None:
    in_flight = InFlight("b")
    in_flight.ack_all(KEY, (100,))
    in_flight.add(checkpoint())
    assert in_flight.unacked(KEY) == [100, 101, 102]

    in_flight.apply_unknown_acks()
    assert in_flight.unacked(KEY) == [101, 102]
    in_flight.ack_all(CHANGED, (101,))
    in_flight.add(checkpoint(101, key=CHANGED))
    in_flight.apply_unknown_acks()
    assert in_flight.unacked(CHANGED) == [101]


def test_deleted_topics_and_groups_are_forgotten() -> None:
    in_flight = InFlight("b")
    for topic in "TU":
        for group in "gh":
            for queue_id in (0, 1):
                key = CheckpointKey(topic, group, queue_id, 100, POP_MS, "b")
                in_flight.add(checkpoint(key=key))

    assert in_flight.forget(topic="T", group="g", queue_id=1) == 3
    assert in_flight.forget(topic="T") == 9
    assert in_flight.forget(group="h") == 6
    assert in_flight.counts() == {("U", "g", 0): 3, ("U", "g", 1): 3}
    assert (in_flight.checkpoint_count, in_flight.message_count) == (2, 6)
    assert in_flight.ack(KEY, 100) is Acked.UNKNOWN


@pytest.mark.parametrize("start", [0, 2**63 - 1, -5])
def test_any_offset_and_time_survives(start: int) -> None:
    key = CheckpointKey("T", "g", 0, start, 5, "b")
    in_flight = InFlight("b")
    in_flight.add(PopCheckpoint(key, (start,), 2**41))

    assert list(in_flight.checkpoints("T", "g", 0)) == [(key, 5 + 2**40 - 1, [start])]
    assert in_flight.ack(key, start) is Acked.NEWLY


def test_acknowledged_checkpoint_and_its_acks_need_no_copy(in_flight: InFlight) -> None:
    copies = DueCopies(in_flight)
    copies.is_complete = True
    revive_at_ms = POP_MS + 60_000
    in_flight.ack_all(KEY, (100, 101, 102))

    assert not copies.needs_checkpoint(KEY, revive_at_ms)
    assert not copies.needs_ack(KEY, revive_at_ms)
    assert not copies.needs_ack(KEY, revive_at_ms)
    assert copies.needs_ack(CHANGED, revive_at_ms)
    # Later ones cannot be its: it is forgotten.
    assert copies.needs_ack(KEY, revive_at_ms + 1)


def test_acks_of_a_delivered_checkpoint_are_delivered(in_flight: InFlight) -> None:
    copies = DueCopies(in_flight)
    copies.is_complete = True

    assert copies.needs_checkpoint(KEY, POP_MS + 60_000)
    in_flight.ack_all(KEY, (100, 101, 102))
    assert copies.needs_ack(KEY, POP_MS + 60_000)


def test_everything_is_delivered_while_checkpoints_are_not_loaded() -> None:
    copies = DueCopies(InFlight("b"))

    assert copies.needs_checkpoint(KEY, 0)
    assert copies.needs_ack(KEY, 0)


def test_skipped_checkpoints_are_limited() -> None:
    copies = DueCopies(InFlight("b"), skipped_max=2)
    copies.is_complete = True
    keys = [KEY._replace(start_offset=offset) for offset in range(3)]
    for key in (*keys, keys[2]):
        assert not copies.needs_checkpoint(key, 5)

    assert [copies.needs_ack(key, 5) for key in keys] == [True, False, False]


class Machine(RuleBasedStateMachine):
    """In-flight messages against sets of offsets."""

    keys = st.builds(
        CheckpointKey,
        st.just("T"),
        st.sampled_from(("g", "h")),
        st.sampled_from((0, 1)),
        st.sampled_from((0, 3)),
        st.sampled_from((7, 8)),
        st.sampled_from(("b", "other")),
    )
    sets = st.sets(st.integers(0, 5))

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight("b")
        self.model: dict[CheckpointKey, set[int]] = {}

    def remove(self, key: CheckpointKey, offsets: set[int]) -> None:
        self.model[key] -= offsets
        if not self.model[key]:
            del self.model[key]

    @rule(key=keys, diffs=sets, acked=sets)
    def add(self, key: CheckpointKey, diffs: set[int], acked: set[int]) -> None:
        offsets = {key.start_offset + diff for diff in diffs}
        held = PopCheckpoint(key, tuple(sorted(offsets)), 60)
        held.ack_all(acked)
        self.in_flight.add(held)
        if offsets - acked:
            self.model.setdefault(key, set()).update(offsets - acked)

    @rule(key=keys, offset=st.integers(0, 9))
    def ack(self, key: CheckpointKey, offset: int) -> None:
        outcome = self.in_flight.ack(key, offset)
        if key not in self.model:
            assert outcome is Acked.UNKNOWN
        elif offset in self.model[key]:
            assert outcome is Acked.NEWLY
            self.remove(key, {offset})
        else:
            assert outcome is Acked.ALREADY

    @rule(key=keys, offsets=st.lists(st.integers(0, 9)))
    def ack_all(self, key: CheckpointKey, offsets: list[int]) -> None:
        found = self.in_flight.ack_all(key, offsets)
        expected = self.model.get(key, set()).intersection(offsets)
        assert sorted(found) == sorted(expected)
        if expected:
            self.remove(key, expected)

    @rule(key=keys, changed=keys, offset=st.integers(0, 9), is_stored=st.booleans())
    def change(self, key: CheckpointKey, changed: Any, offset: int, is_stored: bool) -> None:
        changed = changed._replace(start_offset=offset, pop_time_ms=9)
        outcome = self.in_flight.change(key, offset, PopCheckpoint(changed, (offset,), 60))
        is_in_flight = offset in self.model.get(key, ())
        assert (outcome is Acked.NEWLY) is is_in_flight
        if is_in_flight and is_stored:
            self.in_flight.change_stored(key, offset)
            self.model[changed] = {offset}
            self.remove(key, {offset})
        elif is_in_flight:
            self.in_flight.change_failed(key, offset, changed)
            self.model.pop(changed, None)

    @rule(key=keys)
    def settle(self, key: CheckpointKey) -> None:
        assert self.in_flight.settle(key) == len(self.model.pop(key, ()))

    @invariant()
    def agrees_with_the_model(self) -> None:
        held = {
            key: set(offsets)
            for topic, group, queue_id in self.in_flight.counts()
            for key, _, offsets in self.in_flight.checkpoints(topic, group, queue_id)
        }
        assert held == self.model
        assert self.in_flight.checkpoint_count == len(self.model)
        assert self.in_flight.message_count == sum(map(len, self.model.values()))
        assert sum(self.in_flight.counts().values()) == self.in_flight.message_count


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("start", [0, 100, 2**40])
def test_bits_of_consecutive_messages_are_acknowledged_together(start: int) -> None:
    in_flight = InFlight("b")
    key = KEY._replace(start_offset=start)
    in_flight.add_consecutive(key, 4, 60_000)
    in_flight.set_position(key, 7_000_000_000)
    assert in_flight.unacked(key) == [start, start + 1, start + 2, start + 3]
    assert in_flight.in_flight_bits(key) == (0b1111, POP_MS + 60_000)
    assert in_flight.ack_bits(key, 0b110010) is None
    assert in_flight.unacked(key) == [start, start + 2, start + 3]
    assert in_flight.ack_bits(key, 0b10) is None
    assert in_flight.ack(key, start) is Acked.NEWLY
    assert in_flight.message_count == 2
    assert in_flight.ack_bits(key, 0b1100) == 7_000_000_000
    assert in_flight.ack_bits(key, 0b1100) is None
    assert in_flight.in_flight_bits(key) is None
    assert (in_flight.checkpoint_count, in_flight.message_count) == (0, 0)


def test_position_is_forgotten_with_the_copy_and_with_a_second_checkpoint_of_the_key() -> None:
    in_flight = InFlight("b")
    in_flight.add_consecutive(KEY, 2, 60_000)
    in_flight.set_position(KEY, 10)
    assert in_flight.position_of(KEY) == 10
    in_flight.set_position(KEY, 0)
    assert in_flight.ack_bits(KEY, 0b11) == 0
    in_flight.add_consecutive(KEY, 2, 60_000)
    in_flight.set_position(KEY, 10)
    in_flight.add_consecutive(KEY, 3, 60_000)
    assert in_flight.ack_bits(KEY, 0b111) == 0


def test_bits_of_far_messages_are_acknowledged_too() -> None:
    in_flight = InFlight("b")
    in_flight.add(checkpoint(100, 101, 2**31))
    assert in_flight.in_flight_bits(KEY) is None
    assert in_flight.ack_bits(KEY, 0b11) is None
    assert in_flight.unacked(KEY) == [2**31]


def test_message_about_to_be_changed_is_not_acknowledged_by_bits(in_flight: InFlight) -> None:
    in_flight.change(KEY, 101, checkpoint(101, key=CHANGED))
    assert in_flight.in_flight_bits(KEY) is None
    assert in_flight.ack_bits(KEY, 0b111) is None
    assert in_flight.unacked(KEY) == [101]
