"""Tests of the topic table: both indexes agree, and units are distinguished as in Java."""

from __future__ import annotations

import pytest

from kourou.model.route import QueueData
from kourou.namesrv.topic_queues import TopicQueues


def queues_of(*entries: tuple[str, str, int]) -> TopicQueues:
    """Return queues of (topic, broker name, flag)."""
    queues = TopicQueues()
    for topic, broker, flag in entries:
        queues.put(topic, QueueData(broker, 4, 4, 7, flag))
    return queues


def test_topics_are_removed_with_their_broker() -> None:
    queues = queues_of(("T", "a", 0), ("T", "b", 0), ("U", "a", 0))

    queues.remove_broker("a")

    assert queues.topics() == ["T"]
    assert list(queues.of_topic("T")) == ["b"]
    assert (len(queues), list(queues.of_broker("a"))) == (1, [])


def test_repeated_put_counts_once() -> None:
    queues = queues_of(("T", "a", 0), ("T", "a", 1))

    assert len(queues) == 1
    assert queues.of_topic("T")["a"].topic_sys_flag == 1


def test_removing_an_unknown_entry_is_no_error() -> None:
    queues = queues_of(("T", "a", 0))

    queues.remove("T", "b")
    queues.remove("V", "a")
    queues.remove_broker("c")

    assert len(queues) == 1


def test_write_permission_is_wiped_and_added_for_one_broker() -> None:
    queues = queues_of(("T", "a", 0), ("U", "a", 0), ("T", "b", 0))

    assert queues.wipe_write("a") == 2
    assert [queues.of_topic("T")[name].perm for name in "ab"] == [5, 7]
    assert queues.add_write("a") == 2
    assert [queues.of_topic("T")[name].perm for name in "ab"] == [6, 7], "inherit is lost"
    assert queues.wipe_write("nobody") == 0


@pytest.mark.parametrize(
    ("flag", "lists"),
    [(0, (0, 0, 0)), (1, (1, 0, 0)), (2, (0, 1, 1)), (3, (1, 1, 0))],
    ids=["plain", "unit", "read by a unit", "both"],
)
def test_units_are_distinguished_by_two_bits(flag: int, lists: tuple[int, int, int]) -> None:
    queues = queues_of(("T", "a", flag), ("T", "b", 0))

    found = (queues.unit_topics(), queues.unit_sub_topics(), queues.unit_sub_ununit_topics())

    assert tuple(len(topics) for topics in found) == lists, "the broker that came first decides"
