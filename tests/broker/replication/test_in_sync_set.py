"""A master counts on every set that the controller may have stored, whatever answers are lost."""

from __future__ import annotations

import random

import pytest

from kourou.broker.replication.controlled_role import InSyncSet
from kourou.broker.replication.in_sync_set import InSyncDecisions

OWN = 1


def members(*ids: int) -> frozenset[int]:
    return frozenset(ids)


def decisions(*ids: int, epoch: int = 5) -> InSyncDecisions:
    return InSyncDecisions(OWN, InSyncSet(members(*ids), epoch))


def test_a_proposal_under_way_counts_beside_the_confirmed_set() -> None:
    grows, shrinks = decisions(1), decisions(1, 2, 3)

    grows.propose(members(1, 2))
    shrinks.propose(members(1, 2))

    assert (grows.union, grows.size_min, grows.is_proposing) == (members(1, 2), 1, True)
    assert (shrinks.union, shrinks.size_min) == (members(1, 2, 3), 2)


def test_an_answer_with_the_new_set_ends_all_doubt() -> None:
    state = decisions(1)
    state.propose(members(1, 2))

    state.on_answer(InSyncSet(members(1, 2), 6), 0.0)

    assert state.confirmed == InSyncSet(members(1, 2), 6)
    assert (state.union, state.is_proposing, state.is_in_doubt) == (members(1, 2), False, False)


def test_a_lost_answer_followed_by_another_proposal_leaves_both_in_doubt() -> None:
    state = decisions(1)
    state.propose(members(1, 2))
    state.on_unknown(1.0)
    state.propose(members(1, 3))
    assert (state.union, state.certain) == (members(1, 2, 3), members(1))
    assert state.size_min == 1

    state.on_refused()  # the epoch had changed: the first one may be stored

    assert state.union == members(1, 2)
    state.adopt(InSyncSet(members(1, 2), 6))
    assert (state.union, state.is_in_doubt) == (members(1, 2), False)


def test_an_accepted_proposal_shows_that_earlier_ones_were_not() -> None:
    state = decisions(1)
    state.propose(members(1, 2))
    state.on_unknown(1.0)
    state.propose(members(1, 3))

    state.on_answer(InSyncSet(members(1, 3), 6), 2.0)

    assert (state.union, state.is_in_doubt) == (members(1, 3), False)


@pytest.mark.parametrize(
    ("asked_at_s", "is_settled"), [(None, False), (0.5, False), (1.0, True), (2.0, True)]
)
def test_the_old_set_settles_a_proposal_only_if_asked_for_after_its_end(
    asked_at_s: float | None, is_settled: bool
) -> None:
    state = decisions(1)
    state.propose(members(1, 2))
    state.on_unknown(1.0)

    assert state.adopt(InSyncSet(members(1), 5), asked_at_s) is is_settled

    assert state.is_in_doubt is not is_settled
    assert state.union == (members(1) if is_settled else members(1, 2))


def test_the_old_set_never_settles_a_proposal_under_way() -> None:
    state = decisions(1)
    state.propose(members(1, 2))

    assert not state.adopt(InSyncSet(members(1), 5), 1e9)

    assert state.union == members(1, 2)


def test_a_newer_set_settles_a_proposal_under_way_whose_answer_is_then_of_no_use() -> None:
    state = decisions(1, 2)
    state.propose(members(1))
    state.adopt(InSyncSet(members(1, 2, 3), 7))
    assert (state.union, state.is_proposing) == (members(1, 2, 3), False)

    state.on_answer(InSyncSet(members(1), 6), 3.0)
    state.on_unknown(3.0)
    state.on_refused()

    assert state.confirmed == InSyncSet(members(1, 2, 3), 7)
    assert not state.is_in_doubt


@pytest.mark.parametrize("found", [InSyncSet(members(1), 4), InSyncSet(members(1, 9), 5)])
def test_a_set_that_is_older_or_contradicts_the_confirmed_one_changes_nothing(
    found: InSyncSet,
) -> None:
    state = decisions(1, 2)
    state.propose(members(1, 2, 3))
    state.on_unknown(1.0)

    assert not state.adopt(found, 9.0)

    assert state.confirmed == InSyncSet(members(1, 2), 5)
    assert state.union == members(1, 2, 3)


def test_an_answer_without_a_newer_epoch_tells_nothing() -> None:
    state = decisions(1)
    state.propose(members(1, 2))

    state.on_answer(InSyncSet(members(1), 5), 1.0)

    assert (state.union, state.is_proposing) == (members(1, 2), False)
    assert state.adopt(InSyncSet(members(1), 5), 1.0)


def test_a_set_without_the_master_shows_that_it_is_deposed() -> None:
    state = decisions(1, 2)
    assert state.is_member

    state.adopt(InSyncSet(members(2), 6))

    assert not state.is_member


def test_only_one_proposal_is_under_way_and_it_names_the_master() -> None:
    state = decisions(1)
    with pytest.raises(ValueError, match="lacks its master 1"):
        state.propose(members(2))
    state.propose(members(1, 2))
    with pytest.raises(ValueError, match="is under way"):
        state.propose(members(1, 3))


class Controller:
    """Stores proposals as RocketMQ's does."""

    def __init__(self, first: InSyncSet) -> None:
        self.stored = first

    def receive(self, proposal: InSyncSet) -> bool:
        if proposal.epoch != self.stored.epoch:
            return False
        self.stored = InSyncSet(proposal.members, proposal.epoch + 1)
        return True


@pytest.mark.parametrize("seed", range(60))
def test_the_stored_set_is_within_the_union_whatever_answers_are_lost(seed: int) -> None:
    rng = random.Random(seed)
    state = decisions(1, epoch=0)
    controller = Controller(state.confirmed)
    for step in range(40):
        now_s = float(step)
        wanted = members(1, *rng.sample([2, 3, 4], rng.randrange(4)))
        state.propose(wanted)
        is_received, is_answered = rng.random() < 0.7, rng.random() < 0.6
        is_stored = is_received and controller.receive(InSyncSet(wanted, state.confirmed.epoch))
        assert controller.stored.members <= state.union
        old = controller.stored
        if rng.random() < 0.2:
            state.adopt(old)
        if not is_received or not is_answered:
            state.on_unknown(now_s)
        elif is_stored:
            state.on_answer(old, now_s)
        else:
            state.on_refused()
        if rng.random() < 0.3:
            state.adopt(controller.stored, now_s)
            assert state.union == controller.stored.members
        assert controller.stored.members <= state.union
        assert state.size_min <= len(controller.stored.members)
