"""Messages go to all queues in turn, and after a failure to another broker."""

from __future__ import annotations

from kourou.client.queue_choice import RoundRobin
from kourou.model.queue import MessageQueue

QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]


def test_every_queue_gets_its_turn() -> None:
    choice = RoundRobin(start=3)

    assert [choice.choose(QUEUES) for _ in range(5)] == [QUEUES[3], *QUEUES]


def test_the_broker_that_failed_is_avoided() -> None:
    choice = RoundRobin(start=0)

    assert {choice.choose(QUEUES, avoid="a").broker_name for _ in range(9)} == {"b"}


def test_the_broker_that_failed_is_taken_when_it_is_the_only_one() -> None:
    assert RoundRobin(start=0).choose(QUEUES[:2], avoid="a").broker_name == "a"


def test_a_shrunken_route_is_no_problem() -> None:
    choice = RoundRobin(start=3)
    choice.choose(QUEUES)

    assert choice.choose(QUEUES[:1]) == QUEUES[0]
