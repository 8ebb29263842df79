"""TopicRoute: the brokers and queues of a topic, and the queue lists of producers and consumers.

Source: TopicRouteData.java, MQClientInstance.topicRouteData2TopicPublishInfo and
topicRouteData2TopicSubscribeInfo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kourou.decimals import is_decimal
from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_readable, is_writable

MASTER_ID: Final = 0

WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared, not bound
"""Hosts that stand for all addresses of a machine: a server can listen on them, but a client cannot
connect to them."""

QUEUE_NUMS_MAX: Final = 65_536
"""Largest number of queues of one topic on one broker that a route may announce. Clients allocate
one object per queue, so this bounds the memory that a number from the wire can cost."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """One topic's queues on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """One broker group.

    Attributes:
        broker_addrs: broker id to `host:port`; id 0 is the master.
        enable_acting_master: a slave may act as master if the master is lost.
        zone_name: the zone it runs in, if brokers are distinguished by zone.
    """

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None

    def with_host(self, host: str) -> BrokerData:
        """Return a copy with wildcard hosts replaced by `host`."""
        if not any(map(is_wildcard, self.broker_addrs.values())):
            return self
        addresses = {
            broker_id: replace_wildcard_host(address, host)
            for broker_id, address in self.broker_addrs.items()
        }
        return replace(self, broker_addrs=addresses)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of a topic.

    Attributes:
        queue_datas: one entry per broker name, in any order.
        broker_datas: the addresses of those brokers.
        order_topic_conf: `broker:queues;broker:queues` of an ordered topic, overriding
            `queue_datas` for producers.
    """

    queue_datas: Sequence[QueueData]
    broker_datas: Sequence[BrokerData]
    order_topic_conf: str | None = None

    def master_address(self, broker_name: str) -> str | None:
        """Return the master's `host:port`; None if the broker or its master is unknown."""
        return self._addresses(broker_name).get(MASTER_ID)

    def any_address(self, broker_name: str) -> str | None:
        """Return the master's `host:port`, else that of the lowest broker id, else None."""
        addresses = self._addresses(broker_name)
        return addresses[min(addresses)] if addresses else None

    def is_replicated(self, broker_name: str) -> bool:
        """Return whether a broker has slaves, which may become its master."""
        return any(broker_id != MASTER_ID for broker_id in self._addresses(broker_name))

    def with_host(self, host: str) -> TopicRoute:
        """Return a copy with wildcard hosts replaced by `host`."""
        brokers = [broker.with_host(host) for broker in self.broker_datas]
        return replace(self, broker_datas=brokers)

    def _addresses(self, broker_name: str) -> Mapping[int, str]:
        for broker in self.broker_datas:
            if broker.broker_name == broker_name:
                return broker.broker_addrs
        return {}


def is_wildcard(address: str) -> bool:
    """Return whether the host of `host:port` stands for all addresses of a machine."""
    host, colon, _ = address.rpartition(":")
    return bool(colon) and host.strip("[]") in WILDCARD_HOSTS


def replace_wildcard_host(address: str, host: str) -> str:
    """Return the address with a wildcard host replaced by `host`."""
    if not is_wildcard(address):
        return address
    port = address.rpartition(":")[2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues to which producers may send.

    With `order_topic_conf`, these are the queues that it lists, in its order; else those of brokers
    that are writable and have a master, sorted by (broker name, queue id).

    Raises:
        MalformedBodyError: `order_topic_conf` does not parse; that of a decoded route always does.
    """
    if route.order_topic_conf:
        return [
            MessageQueue(topic, broker_name, queue_id)
            for broker_name, queue_nums in parse_order_topic_conf(route.order_topic_conf)
            for queue_id in range(queue_nums)
        ]
    return [
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in sorted(route.queue_datas, key=_broker_name)
        if is_writable(queues.perm) and route.master_address(queues.broker_name) is not None
        for queue_id in range(queues.write_queue_nums)
    ]


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that consumers read, sorted by (broker name, queue id).

    Queues of a broker without a master are included: its slaves serve reads.
    """
    return [
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in sorted(route.queue_datas, key=_broker_name)
        if is_readable(queues.perm)
        for queue_id in range(queues.read_queue_nums)
    ]


def parse_order_topic_conf(text: str) -> list[tuple[str, int]]:
    """Return the (broker name, number of queues) pairs of `broker:queues;broker:queues`.

    Raises:
        MalformedBodyError: a part is not of this form, or has more than `QUEUE_NUMS_MAX` queues.
    """
    pairs = []
    for part in text.split(";"):
        broker_name, _, nums = part.rpartition(":")
        if not broker_name or not is_decimal(nums, len(str(QUEUE_NUMS_MAX))):
            raise MalformedBodyError(f"orderTopicConf: {part[:80]!r} is not broker:queues")
        if int(nums) > QUEUE_NUMS_MAX:
            raise MalformedBodyError(f"orderTopicConf: {nums} queues, at most {QUEUE_NUMS_MAX}")
        pairs.append((broker_name, int(nums)))
    return pairs


def format_order_topic_conf(pairs: Iterable[tuple[str, int]]) -> str:
    """Return the text of (broker name, number of queues) pairs, in their order."""
    return ";".join(f"{broker_name}:{nums}" for broker_name, nums in pairs)


def _broker_name(queues: QueueData) -> str:
    return queues.broker_name
