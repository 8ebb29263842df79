"""Queues are chosen in turn, at another broker after a failure, or by the caller."""

from __future__ import annotations

import random

import pytest

from kourou.client.sending.queue_choice import (
    RoundRobin,
    at_random,
    by_sharding_key,
    in_machine_rooms,
    queue_of_key,
)
from kourou.errors import NoRouteError, UsageError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.protocol.hashing import java_string_hash


def route_to(*broker_names: str, queues: int = 2) -> TopicRoute:
    return TopicRoute(
        tuple(QueueData(name, queues, queues, 6) for name in broker_names),
        tuple(BrokerData("c", name, {0: f"{name}:1"}) for name in broker_names),
    )


MESSAGE = Message("T", b"x")
ROUTE = route_to("a", "b")
QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]


def test_queues_are_chosen_in_turn() -> None:
    choice = RoundRobin("T", start=3)

    assert [choice.choose(ROUTE) for _ in range(5)] == [QUEUES[3], *QUEUES]


def test_failed_broker_is_avoided() -> None:
    choice = RoundRobin("T", start=0)

    assert {choice.choose(ROUTE, avoid="a").broker_name for _ in range(9)} == {"b"}


def test_failed_broker_is_used_if_it_is_the_only_one() -> None:
    assert RoundRobin("T", start=0).choose(route_to("a"), avoid="a").broker_name == "a"


def test_route_with_fewer_queues_is_accepted() -> None:
    choice = RoundRobin("T", start=3)
    choice.choose(ROUTE)

    assert choice.choose(route_to("a", queues=1)) == QUEUES[0]


def test_topic_without_writable_queue_is_named() -> None:
    with pytest.raises(NoRouteError, match="topic T has no writable queue"):
        RoundRobin("T", start=0).choose(route_to())


def test_preferred_broker_is_chosen_or_any_if_none_is_preferred() -> None:
    choice = RoundRobin("T", start=0)
    route = route_to("a", "b", "c", queues=1)
    names = "a".__eq__, lambda name: name in "ab"

    assert [choice.choose(route, None, names).broker_name for _ in range(3)] == ["a"] * 3
    assert choice.choose(route, "a", names).broker_name == "b"
    assert choice.choose(route, "c", [lambda _: False]).broker_name in {"a", "b", "c"}


def test_sharding_key_selects_the_same_queue_as_java() -> None:
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(7)]

    # The hash of "polygenelubricants" is Java's smallest int, whose absolute value is not an int.
    hashes = {"hello": 99_162_322, "": 0, "polygenelubricants": -(2**31), "é€": 233 * 31 + 8_364}
    for key, value in hashes.items():
        assert java_string_hash(key) == value
        assert queue_of_key(queues, key).queue_id == abs(value) % 7
        assert by_sharding_key(key)(queues, MESSAGE) == queue_of_key(queues, key)


def test_random_choice_uses_all_queues() -> None:
    select = at_random(random.Random(1))

    assert {select(QUEUES, MESSAGE) for _ in range(100)} == set(QUEUES)
    assert at_random()(QUEUES, MESSAGE) in QUEUES


def test_only_queues_of_the_machine_rooms_are_chosen() -> None:
    names = ("r1@a", "r1@b", "r2@a", "r3")
    queues = [MessageQueue("T", name, 0) for name in names]
    select = in_machine_rooms(["r1", "r3"])

    assert [select(queues, MESSAGE).broker_name for _ in range(3)] == ["r1@a", "r1@b", "r1@a"]
    with pytest.raises(UsageError, match="topic T has no queue in the machine rooms r3, r9"):
        in_machine_rooms({"r9", "r3"})(queues, MESSAGE)
