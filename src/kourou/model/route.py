"""TopicRoute: which brokers hold a topic's queues, and the queues that follow from it.

Source: TopicRouteData.java, MQClientInstance.topicRouteData2TopicPublishInfo and
topicRouteData2TopicSubscribeInfo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_readable, is_writable

MASTER_ID: Final = 0

WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared, not bound
"""Hosts that mean all addresses of a machine: to be listened on, and none that a client reaches."""

QUEUE_NUMS_MAX: Final = 65_536
"""Queues of one topic on one broker that a route may announce: a client lists them one by one,
so a number from the wire must not decide how much memory that takes."""


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
        enable_acting_master: a slave may stand in for a lost master.
        zone_name: where it runs, if brokers are told apart by zone.
    """

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None

    def at_host(self, host: str) -> BrokerData:
        """Return the same with `host` in place of a wildcard host."""
        if not any(map(is_wildcard, self.broker_addrs.values())):
            return self
        addresses = {number: at_host(one, host) for number, one in self.broker_addrs.items()}
        return replace(self, broker_addrs=addresses)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic's queues are.

    Attributes:
        queue_datas: one entry a broker name; any order.
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

    def at_host(self, host: str) -> TopicRoute:
        """Return the same with `host` in place of wildcard hosts."""
        brokers = [broker.at_host(host) for broker in self.broker_datas]
        return replace(self, broker_datas=brokers)

    def _addresses(self, broker_name: str) -> Mapping[int, str]:
        for broker in self.broker_datas:
            if broker.broker_name == broker_name:
                return broker.broker_addrs
        return {}


def is_wildcard(address: str) -> bool:
    """Return whether the host of `host:port` means all addresses of a machine."""
    host, colon, _ = address.rpartition(":")
    return bool(colon) and host.strip("[]") in WILDCARD_HOSTS


def at_host(address: str, host: str) -> str:
    """Return `host:port`, with `host` in place of a wildcard host."""
    if not is_wildcard(address):
        return address
    port = address.rpartition(":")[2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that producers may write.

    With `order_topic_conf`, the queues it lists in its order; else those of brokers that are
    writable and have a master, sorted by (broker name, queue id).

    Raises:
        MalformedBodyError: `order_topic_conf` does not parse; a decoded route's always does.
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

    A broker without a master counts: its slaves serve reads.
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
        # Five digits hold QUEUE_NUMS_MAX; int() of a longer text is never worth its time.
        if not broker_name or not (nums.isascii() and nums.isdigit() and len(nums) <= 5):
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
