"""Messages go to all queues in turn, and after a failure to another broker."""

from __future__ import annotations

import pytest

from kourou.client.queue_choice import RoundRobin
from kourou.errors import NoRouteError
from kourou.model.queue import MessageQueue
from kourou.model.route import BrokerData, QueueData, TopicRoute


def route_to(*broker_names: str, queues: int = 2) -> TopicRoute:
    return TopicRoute(
        tuple(QueueData(name, queues, queues, 6) for name in broker_names),
        tuple(BrokerData("c", name, {0: f"{name}:1"}) for name in broker_names),
    )


ROUTE = route_to("a", "b")
QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]


def test_every_queue_gets_its_turn() -> None:
    choice = RoundRobin("T", start=3)

    assert [choice.choose(ROUTE) for _ in range(5)] == [QUEUES[3], *QUEUES]


def test_the_broker_that_failed_is_avoided() -> None:
    choice = RoundRobin("T", start=0)

    assert {choice.choose(ROUTE, avoid="a").broker_name for _ in range(9)} == {"b"}


def test_the_broker_that_failed_is_taken_when_it_is_the_only_one() -> None:
    assert RoundRobin("T", start=0).choose(route_to("a"), avoid="a").broker_name == "a"


def test_a_shrunken_route_is_no_problem() -> None:
    choice = RoundRobin("T", start=3)
    choice.choose(ROUTE)

    assert choice.choose(route_to("a", queues=1)) == QUEUES[0]


def test_a_topic_without_a_queue_to_write_is_named() -> None:
    with pytest.raises(NoRouteError, match="topic T has no queue that can be written"):
        RoundRobin("T", start=0).choose(route_to())
