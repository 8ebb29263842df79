"""Shares are those that Java's members compute, and a pass changes no more than it must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.client.consuming.rebalance import STRATEGIES, plan_changes
from kourou.model.queue import MessageQueue

GOLDEN = Path(__file__).parents[2] / "golden" / "vectors" / "allocate.json"
CASES: list[dict[str, Any]] = [
    case for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"] if case.get("queues")
]

queues = st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b", "c"]), st.integers(0, 20))
ids = st.text("abc019@#", min_size=1, max_size=4)


def queue_of(text: str) -> MessageQueue:
    broker_name, queue_id = text.split(":")
    return MessageQueue("T", broker_name, int(queue_id))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['strategy']}")
def test_every_member_computes_the_share_that_java_computes(case: dict[str, Any]) -> None:
    allocate = STRATEGIES[case["strategy"]]
    found = [
        allocate([queue_of(text) for text in case["queues"]], case["consumers"], consumer)
        for consumer in case["consumers"]
    ]

    assert found == [[queue_of(text) for text in share] for share in case["result"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    all_queues=st.lists(queues, unique=True),
    members=st.lists(ids, min_size=1, unique=True),
    held=st.lists(queues, unique=True),
)
def test_the_shares_cover_every_queue_once_whatever_was_held(
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
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_member_that_the_broker_does_not_list_gives_up_everything() -> None:
    held = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]

    changes = plan_changes(held, held, ["other"], "me", STRATEGIES["AVG"])

    assert changes.released == tuple(held)
    assert changes.added == ()


def test_a_right_share_changes_nothing() -> None:
    held = [MessageQueue("T", "a", 0)]

    assert plan_changes(held, held, ["me"], "me", STRATEGIES["AVG"]).is_empty
