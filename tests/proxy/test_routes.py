"""Routes and assignments equal the recorded ones; endpoints follow the rules of their own."""

from __future__ import annotations

from collections import defaultdict

import pytest

from kourou.errors import CallRefusedError
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import AddressScheme, Code, MessageType, Permission
from kourou.proxy.routes import (
    accepted_types,
    assignments,
    endpoints_of,
    message_queues,
    route_endpoints,
)
from tests.golden_calls import calls

REACHED = ("10.0.0.5", 8081)
TOPIC = v2.Resource(resource_namespace="ns", name="T")
TYPES = {
    "GrpcFifo": "FIFO",
    "GrpcDelay": "DELAY",
    "GrpcTran": "TRANSACTION",
    "GrpcConsumeFifo": "FIFO",
}


def route(
    perm: int = 6,
    reads: int = 4,
    writes: int = 4,
    brokers: tuple[tuple[str, tuple[int, ...]], ...] = (("broker-a", (0,)),),
) -> TopicRoute:
    return TopicRoute(
        [QueueData(name, reads, writes, perm) for name, _ in brokers],
        [
            BrokerData("c", name, {one: f"10.0.0.{one}:10911" for one in ids})
            for name, ids in brokers
        ],
    )


def answered(prefix: str) -> list[str]:
    names = [name for name in calls() if name.startswith(f"cluster/{prefix}")]
    return [
        name
        for name in names
        if parse(v2.QueryRouteResponse, calls()[name].responses[0]).status.code == Code.OK
    ]


@pytest.mark.parametrize("name", answered("QueryRoute"))
def test_routes_equal_the_recorded_ones(name: str) -> None:
    request = parse(v2.QueryRouteRequest, calls()[name].request)
    (data,) = calls()[name].responses
    recorded = parse(v2.QueryRouteResponse, data).message_queues
    topic = request.topic.name
    queues = len(recorded)
    perm = 4 if topic == "GrpcReadOnly" else 6
    for address in request.endpoints.addresses:
        address.port = 18081  # RocketMQ's proxy answers with the port on which it listens

    found = message_queues(
        route(perm, queues, queues),
        request.topic,
        route_endpoints(request.endpoints, None, REACHED),
        TYPES.get(topic, "NORMAL"),
    )

    if not request.endpoints.addresses:
        # RocketMQ answers without addresses, which no client can use.
        assert found[0].broker.endpoints == endpoints_of(REACHED)
        return
    assert found == list(recorded)


@pytest.mark.parametrize("name", answered("QueryAssignment"))
def test_assignments_equal_the_recorded_ones(name: str) -> None:
    request = parse(v2.QueryAssignmentRequest, calls()[name].request)
    (data,) = calls()[name].responses
    recorded = parse(v2.QueryAssignmentResponse, data).assignments
    by_queue = name.endswith("fifo_group")
    nums = len(recorded) if by_queue else 4
    endpoints = route_endpoints(request.endpoints, None, REACHED)

    found = assignments(route(6, nums, nums), request.topic, endpoints, by_queue=by_queue)

    assert found == list(recorded)


@pytest.mark.parametrize(
    ("perm", "reads", "writes", "expected"),
    [
        (6, 2, 2, "rw rw"),
        (6, 3, 1, "r r rw"),
        (6, 1, 3, "w w rw"),
        (4, 2, 3, "r r"),
        (2, 2, 3, "w w w"),
        (0, 2, 3, "none none none"),
        (0, 0, 0, "none"),
        (1, 0, 0, "none"),
    ],
)
def test_read_only_queues_come_first(perm: int, reads: int, writes: int, expected: str) -> None:
    names = {
        Permission.READ: "r",
        Permission.WRITE: "w",
        Permission.READ_WRITE: "rw",
        Permission.NONE: "none",
    }

    queues = message_queues(route(perm, reads, writes), TOPIC, endpoints_of(REACHED), "NORMAL")

    assert " ".join(names[Permission(queue.permission)] for queue in queues) == expected
    assert [queue.id for queue in queues] == list(range(len(queues)))


def test_all_ids_of_all_brokers_are_listed() -> None:
    brokers = (("b", (0, 1)), ("a", (2,)))

    queues = message_queues(route(6, 2, 2, brokers), TOPIC, endpoints_of(REACHED), "NORMAL")

    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for queue in queues:
        found[queue.broker.name, queue.broker.id].append(queue.id)
        assert queue.topic == TOPIC
        assert queue.broker.endpoints == endpoints_of(REACHED)
    assert found == {("b", 0): [0, 1], ("b", 1): [0, 1], ("a", 2): [0, 1]}


def test_queues_of_a_broker_without_addresses_are_left_out() -> None:
    lost = TopicRoute([QueueData("gone", 1, 1, 6), QueueData("a", 1, 1, 6)], route().broker_datas)

    assert message_queues(lost, TOPIC, endpoints_of(REACHED), "NORMAL") == []


def test_slaves_are_not_assigned() -> None:
    brokers = (("a", (0, 1)), ("b", (1,)))

    found = assignments(route(brokers=brokers), TOPIC, endpoints_of(REACHED), by_queue=False)

    assert [(one.message_queue.broker.name, one.message_queue.id) for one in found] == [("a", -1)]


@pytest.mark.parametrize(("perm", "reads"), [(2, 4), (6, 0)])
def test_topics_without_readable_queues_are_refused(perm: int, reads: int) -> None:
    with pytest.raises(CallRefusedError, match="no readable queue") as refused:
        assignments(route(perm, reads), TOPIC, endpoints_of(REACHED), by_queue=False)
    assert refused.value.code == Code.FORBIDDEN


@pytest.mark.parametrize(
    ("topic_type", "expected"),
    [
        ("FIFO", [MessageType.FIFO]),
        ("LITE", [MessageType.LITE]),
        ("PRIORITY", [MessageType.PRIORITY]),
        ("UNSPECIFIED", [MessageType.MESSAGE_TYPE_UNSPECIFIED]),
        ("other", [MessageType.MESSAGE_TYPE_UNSPECIFIED]),
        ("MIXED", [1, 2, 3, 4]),
    ],
)
def test_accepted_types(topic_type: str, expected: list[int]) -> None:
    assert list(accepted_types(topic_type)) == expected


def endpoints(scheme: int, *hosts: str) -> v2.Endpoints:
    return v2.Endpoints(
        scheme=scheme, addresses=[v2.Address(host=host, port=443) for host in hosts]
    )


@pytest.mark.parametrize(
    "requested",
    [
        endpoints(AddressScheme.IPv4, "1.2.3.4", "1.2.3.5"),
        endpoints(AddressScheme.IPv6, "::1"),
        endpoints(AddressScheme.DOMAIN_NAME, "mq.example"),
        endpoints(AddressScheme.IPv4, "mq.example"),  # the scheme is the client's
    ],
)
def test_endpoints_are_those_of_the_request(requested: v2.Endpoints) -> None:
    assert route_endpoints(requested, None, REACHED) == requested


def test_a_domain_has_one_address() -> None:
    requested = endpoints(AddressScheme.DOMAIN_NAME, "a.example", "b.example")

    found = route_endpoints(requested, None, REACHED)

    assert [address.host for address in found.addresses] == ["a.example"]


def test_missing_scheme_follows_from_the_host() -> None:
    assert route_endpoints(endpoints(0, "::1"), None, REACHED).scheme == AddressScheme.IPv6


def test_request_without_endpoints_gets_the_address_it_came_to() -> None:
    assert route_endpoints(v2.Endpoints(), None, REACHED) == endpoints_of(REACHED)


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("mq.example", AddressScheme.DOMAIN_NAME),
        ("10.0.0.1", AddressScheme.IPv4),
        ("[::1]", AddressScheme.IPv6),
    ],
)
def test_advertised_address_overrides_the_request(host: str, scheme: AddressScheme) -> None:
    found = route_endpoints(endpoints(AddressScheme.IPv4, "1.2.3.4"), (host, 9000), REACHED)

    address = v2.Address(host=host.strip("[]"), port=9000)
    assert found == v2.Endpoints(scheme=scheme, addresses=[address])
