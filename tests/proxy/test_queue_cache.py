"""The queues of a topic are listed once for each route, and again when the route changes."""

from __future__ import annotations

from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute, publish_queues
from kourou.model.topic import PERM_READ, PERM_WRITE
from kourou.proxy.queue_choice import QueueCache

READ_WRITE = PERM_READ | PERM_WRITE


def route(queue_nums: int) -> TopicRoute:
    return TopicRoute(
        (QueueData("broker-a", queue_nums, queue_nums, READ_WRITE, 0),),
        (BrokerData("cluster", "broker-a", {MASTER_ID: "127.0.0.1:10911"}),),
    )


def test_queues_are_listed_once_for_a_route() -> None:
    listed: list[TopicRoute] = []

    def list_queues(topic: str, one: TopicRoute) -> list[MessageQueue]:
        listed.append(one)
        return publish_queues(topic, one)

    cache, first = QueueCache(list_queues, 10), route(2)
    expected = [MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)]
    assert [cache.queues("T", first) for _ in range(3)] == [expected] * 3
    assert len(listed) == 1


def test_changed_route_has_its_own_queues() -> None:
    cache = QueueCache(publish_queues, 10)
    assert len(cache.queues("T", route(2))) == 2
    assert len(cache.queues("T", route(3))) == 3


def test_number_of_topics_is_limited() -> None:
    cache = QueueCache(publish_queues, 2)
    for topic in ("A", "B", "C"):
        assert cache.queues(topic, route(1)) == [MessageQueue(topic, "broker-a", 0)]
    assert len(cache) == 2
