"""Routes give the queues that Java's clients derive from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.model.route import (
    QUEUE_NUMS_MAX,
    BrokerData,
    QueueData,
    TopicRoute,
    parse_order_topic_conf,
    publish_queues,
    replace_wildcard_host,
    subscribe_queues,
)

MASTER_A = BrokerData("C", "a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
SLAVES_B = BrokerData("C", "b", {2: "10.0.0.4:10911", 1: "10.0.0.3:10911"})
ROUTE = TopicRoute(
    [QueueData("b", 1, 2, 6), QueueData("a", 2, 1, 6), QueueData("c", 4, 4, 6)],
    [SLAVES_B, MASTER_A],
)


@pytest.mark.parametrize(
    ("address", "host", "expected"),
    [
        ("0.0.0.0:10911", "10.0.0.7", "10.0.0.7:10911"),
        ("[::]:10911", "fd00::7", "[fd00::7]:10911"),
        (":10911", "10.0.0.7", "10.0.0.7:10911"),
        ("10.0.0.1:10911", "10.0.0.7", "10.0.0.1:10911"),
        ("broker.example:443", "10.0.0.7", "broker.example:443"),
        ("", "10.0.0.7", ""),
        ("broker", "10.0.0.7", "broker"),
    ],
)
def test_wildcard_host_is_replaced(address: str, host: str, expected: str) -> None:
    assert replace_wildcard_host(address, host) == expected


def queues(*names: tuple[str, int]) -> list[MessageQueue]:
    return [MessageQueue("T", broker_name, queue_id) for broker_name, queue_id in names]


def test_publish_queues_are_those_of_masters_sorted_by_broker() -> None:
    assert publish_queues("T", ROUTE) == queues(("a", 0))


def test_subscribe_queues_include_brokers_without_a_master() -> None:
    assert subscribe_queues("T", ROUTE) == queues(
        ("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)
    )


def test_permissions_limit_publish_and_subscribe_queues() -> None:
    read_only = TopicRoute([QueueData("a", 1, 1, 4)], [MASTER_A])
    write_only = TopicRoute([QueueData("a", 1, 1, 2)], [MASTER_A])

    assert publish_queues("T", read_only) == []
    assert subscribe_queues("T", read_only) == queues(("a", 0))
    assert publish_queues("T", write_only) == queues(("a", 0))
    assert subscribe_queues("T", write_only) == []


def test_order_topic_conf_replaces_publish_queues() -> None:
    ordered = TopicRoute(ROUTE.queue_datas, ROUTE.broker_datas, "b:1;a:2")

    assert publish_queues("T", ordered) == queues(("b", 0), ("a", 0), ("a", 1))
    assert subscribe_queues("T", ordered) == subscribe_queues("T", ROUTE)


def test_addresses_are_found_by_broker_name() -> None:
    assert ROUTE.master_address("a") == "10.0.0.1:10911"
    assert ROUTE.master_address("b") is None
    assert ROUTE.master_address("c") is None
    assert ROUTE.any_address("a") == "10.0.0.1:10911"
    assert ROUTE.any_address("b") == "10.0.0.3:10911"
    assert ROUTE.any_address("c") is None
    assert TopicRoute([], [BrokerData("C", "a")]).any_address("a") is None


@pytest.mark.parametrize(
    "text", ["a", "a:", ":1", "a:x", "a:-1", "a:1;", ";", "a:65537", "a:1;b:999999", "a:\u0663"]
)
def test_invalid_order_topic_conf_is_refused(text: str) -> None:
    with pytest.raises(MalformedBodyError, match="orderTopicConf"):
        parse_order_topic_conf(text)


def test_broker_name_may_contain_colons() -> None:
    assert parse_order_topic_conf("x:y:3") == [("x:y", 3)]


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters=";"), min_size=1),
            st.integers(0, QUEUE_NUMS_MAX),
        ),
        min_size=1,
    )
)
def test_formatted_order_topic_conf_parses_to_the_same(pairs: list[tuple[str, int]]) -> None:
    text = ";".join(f"{broker_name}:{nums}" for broker_name, nums in pairs)

    assert parse_order_topic_conf(text) == pairs


def test_queues_sort_by_topic_broker_and_id() -> None:
    expected = [
        MessageQueue("S", "b", 1),
        MessageQueue("T", "a", 2),
        MessageQueue("T", "a", 10),
        MessageQueue("T", "b", 0),
    ]

    shuffled = [expected[2], expected[0], expected[3], expected[1]]
    assert sorted(shuffled) == expected
