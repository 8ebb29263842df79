"""Routes and assignments for clients: queues of a topic, with the endpoints of the proxy.

Source: RouteActivity.java, apache/rocketmq 5.5.0, and recorded calls. The endpoints follow rules
of their own, because RocketMQ's replace the port of the client's request by that of the proxy:
a client behind a port mapping could not connect.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from kourou.errors import CallRefusedError
from kourou.model.host import Host
from kourou.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from kourou.model.topic import PERM_READ, PERM_WRITE, is_readable, is_writable
from kourou.proxy.checks import MIXED
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import AddressScheme, Code, MessageType, Permission

ANY_QUEUE: Final = -1
"""Queue id of an assignment to all queues of a broker."""

_MIXED_TYPES: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)


def endpoints_of(address: Host) -> v2.Endpoints:
    """Return the endpoints of one address, given by a name or an IP address."""
    host, port = address
    return v2.Endpoints(
        scheme=_scheme(host), addresses=[v2.Address(host=host.strip("[]"), port=port)]
    )


def route_endpoints(
    requested: v2.Endpoints, advertised: Host | None, reached: Host
) -> v2.Endpoints:
    """Return the endpoints at which a client reaches the proxy.

    Args:
        requested: those of the request, which the client uses already.
        advertised: the configured address, which overrides them.
        reached: the address to which the client's connection came, for a request without any.
    """
    if advertised is not None:
        return endpoints_of(advertised)
    if not requested.addresses:
        return endpoints_of(reached)
    scheme = requested.scheme or _scheme(requested.addresses[0].host)
    # Clients accept only one address of a domain.
    is_domain = scheme == AddressScheme.DOMAIN_NAME
    addresses = requested.addresses[:1] if is_domain else requested.addresses
    return v2.Endpoints(scheme=scheme, addresses=addresses)


def message_queues(
    route: TopicRoute, topic: v2.Resource, endpoints: v2.Endpoints, topic_type: str
) -> list[v2.MessageQueue]:
    """Return the queues of a route, for each broker id of its brokers.

    Queues are numbered on each broker: first those that are only readable, then those only
    writable, then the others.

    Args:
        route: of the topic.
        topic: as the client named it.
        endpoints: of the proxy.
        topic_type: the topic's attribute `message.type`.
    """
    types = accepted_types(topic_type)
    return [
        v2.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=permission,
            broker=broker,
            accept_message_types=types,
        )
        for queues in route.queue_datas
        for broker in _brokers(route, queues.broker_name, endpoints)
        for queue_id, permission in enumerate(_permissions(queues))
    ]


def assignments(
    route: TopicRoute, topic: v2.Resource, endpoints: v2.Endpoints, *, by_queue: bool
) -> list[v2.Assignment]:
    """Return what each member of a group receives from: all readable queues.

    Members are not balanced: each pops from all brokers.

    Args:
        route: of the topic.
        topic: as the client named it.
        endpoints: of the proxy.
        by_queue: one assignment for each queue, for a group that preserves their order; else one
            for each broker, with `ANY_QUEUE`.

    Raises:
        CallRefusedError: FORBIDDEN; no queue is readable.
    """
    found = [
        v2.Assignment(
            message_queue=v2.MessageQueue(
                topic=topic, id=queue_id, permission=_permission(queues.perm), broker=broker
            )
        )
        for queues in route.queue_datas
        if is_readable(queues.perm) and queues.read_queue_nums > 0
        for broker in _brokers(route, queues.broker_name, endpoints)
        if broker.id == MASTER_ID
        for queue_id in (range(queues.read_queue_nums) if by_queue else (ANY_QUEUE,))
    ]
    if not found:
        raise CallRefusedError(Code.FORBIDDEN, "no readable queue")
    return found


def accepted_types(topic_type: str) -> tuple[MessageType, ...]:
    """Return the types of messages that a topic of this type accepts."""
    if topic_type == MIXED:
        return _MIXED_TYPES
    known = MessageType.__members__.get(topic_type, MessageType.MESSAGE_TYPE_UNSPECIFIED)
    return (known,)


def _permission(perm: int) -> Permission:
    if is_readable(perm):
        return Permission.READ_WRITE if is_writable(perm) else Permission.READ
    return Permission.WRITE if is_writable(perm) else Permission.NONE


def _permissions(queues: QueueData) -> Iterator[Permission]:
    """Yield the permission of each queue, in the order of their ids."""
    reads = queues.read_queue_nums if queues.perm & PERM_READ else 0
    writes = queues.write_queue_nums if queues.perm & PERM_WRITE else 0
    if not queues.perm & (PERM_READ | PERM_WRITE):
        nums = max(1, queues.read_queue_nums, queues.write_queue_nums)
        yield from [Permission.NONE] * nums
    both = min(reads, writes)
    yield from [Permission.READ] * (reads - both)
    yield from [Permission.WRITE] * (writes - both)
    yield from [Permission.READ_WRITE] * both


def _brokers(route: TopicRoute, broker_name: str, endpoints: v2.Endpoints) -> list[v2.Broker]:
    """Return the broker once for each of its ids; none if the route does not have it."""
    data = next(
        (one for one in route.broker_datas if one.broker_name == broker_name),
        BrokerData("", broker_name),
    )
    return [
        v2.Broker(name=broker_name, id=broker_id, endpoints=endpoints)
        for broker_id in sorted(data.broker_addrs)
    ]


def _scheme(host: str) -> AddressScheme:
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv4 if version == 4 else AddressScheme.IPv6
