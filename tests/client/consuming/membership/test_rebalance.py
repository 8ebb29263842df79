"""A pass makes the minimal changes with any strategy, and validates a strategy's result."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.client.consuming.membership.rebalance import java_order, plan_changes
from kourou.client.consuming.strategies import STRATEGIES
from kourou.errors import UsageError
from kourou.model.queue import MessageQueue

queues = st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b", "c"]), st.integers(0, 20))
ids = st.text("abc019@#", min_size=1, max_size=4)
QUEUE = MessageQueue("T", "a", 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    all_queues=st.lists(queues, unique=True).map(sorted),
    members=st.lists(ids, min_size=1, unique=True).map(sorted),
    held=st.lists(queues, unique=True),
)
def test_assignments_cover_every_queue_once_regardless_of_held_queues(
    strategy: str, all_queues: list[MessageQueue], members: list[str], held: list[MessageQueue]
) -> None:
    shares = []
    for member in members:
        changes = plan_changes(held, all_queues, members, member, STRATEGIES[strategy])
        share = (set(held) - set(changes.released)) | set(changes.added)
        assert not set(changes.released) & share
        assert not set(changes.added) & set(held)
        shares.append(share)

    assert sorted(queue for share in shares for queue in share) == sorted(all_queues)


def test_a_member_missing_from_the_list_releases_all_queues() -> None:
    held = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]

    changes = plan_changes(held, held, ["other"], "me", STRATEGIES["AVG"])

    assert changes.released == tuple(held)
    assert changes.added == ()


def test_a_matching_assignment_changes_nothing() -> None:
    assert plan_changes([QUEUE], [QUEUE], ["me"], "me", STRATEGIES["AVG"]).is_empty


def test_ids_are_sorted_as_java_sorts_them() -> None:
    assert java_order(["b", "a", "B"]) == ["B", "a", "b"]
    # A character above 16 bits begins with a UTF-16 unit that is below some 16-bit characters.
    assert java_order(["\uff5e", "\U0001f680"]) == ["\U0001f680", "\uff5e"]


@pytest.mark.parametrize("given_back", [None, "T", 1])
def test_a_strategy_that_returns_no_queues_is_reported_by_name(given_back: object) -> None:
    def nonsense(_: Sequence[MessageQueue], __: Sequence[str], ___: str) -> object:
        return given_back

    with pytest.raises(UsageError, match="strategy nonsense returned"):
        plan_changes([], [QUEUE], ["me"], "me", nonsense)  # type: ignore[arg-type]


def test_a_strategy_that_returns_unknown_queues_is_reported_by_name() -> None:
    def greedy(
        all_queues: Sequence[MessageQueue], _: Sequence[str], __: str
    ) -> Sequence[MessageQueue]:
        return [*all_queues, MessageQueue("T", "b", 7)]

    with pytest.raises(
        UsageError, match=r"strategy greedy returned .*queue_id=7.*not a queue of the topic"
    ):
        plan_changes([], [QUEUE], ["me"], "me", greedy)
