"""RouteTable: the registered brokers and their topics.

    table     key                      value
    brokers   broker name              cluster, addresses by broker id (0 is the master)
    queues    topic, broker name       QueueData, see `topic_queues.py`
    alive     (cluster, address)       time last seen, timeout, data version, connection

Each address in `brokers` has an entry in `alive`, so routes contain live brokers only.

The table is in memory only; after a restart the next registrations of the brokers restore it. A
topic that a registration does not mention stays, because brokers also send single changes. It is
removed with the last address of its broker, by `delete_topic`, or by `drop_missing`.

Pure: no I/O, and the time is an argument.

Two changes of a route for its client are functions of their own. An acting master is a slave that
routes show as master, so that a lost master's messages can be read. A client may ask for the
brokers of one zone only.

Source: RouteInfoManager.java, ZoneRouteRPCHook.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar, cast

from kourou.errors import RemoteSystemError
from kourou.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from kourou.model.topic import PERM_WRITE, TopicConfig, is_writable
from kourou.namesrv.broker_identity import BrokerIdentity, MasterAddresses, MinIdChange
from kourou.namesrv.topic_queues import TopicQueues
from kourou.protocol.codes import ResponseCode
from kourou.protocol.data_version import DataVersion
from kourou.protocol.routes import ClusterInfo
from kourou.protocol.topic_table import TopicConfigTable

NAME_LENGTH_MAX: Final = 255
"""Maximum number of characters of a topic, broker or cluster name and of an address. It bounds the
memory of an entry, because the other limits count entries."""

TOPICS_PER_STEP: Final = 2_000
"""Topics of a registration that are entered without a pause; this takes 10 ms at most."""
_QUEUE_DATA_CACHED_MAX: Final = 1024
_Result = TypeVar("_Result")
_SINGLE_CHANGE_TOPICS: Final = 1


@dataclass(slots=True)
class _Broker:
    """The brokers of one broker name: a master and its slaves."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone: str | None = None


@dataclass(slots=True)
class _LiveBroker:
    """Liveness of one broker: its last registration, and the time it was last seen."""

    identity: BrokerIdentity
    seen_at_ms: int
    timeout_ms: int
    data_version: DataVersion
    connection: Hashable


class RouteTable:
    """The registered brokers, their topics, and the routes derived from them.

    Args:
        broker_timeout_ms: timeout of brokers that name none of their own.
        brokers_max: maximum number of registered addresses.
        topic_entries_max: maximum number of (topic, broker name) pairs.
        on_min_id_changed: called when another broker of a name becomes the one with the lowest id.
    """

    def __init__(
        self,
        broker_timeout_ms: int = 120_000,
        brokers_max: int = 10_000,
        topic_entries_max: int = 1_000_000,
        on_min_id_changed: Callable[[MinIdChange], None] = lambda _: None,
    ) -> None:
        self._broker_timeout_ms = broker_timeout_ms
        self._brokers_max = brokers_max
        self._topic_entries_max = topic_entries_max
        self._on_min_id_changed = on_min_id_changed
        self._brokers: dict[str, _Broker] = {}
        self._queues = TopicQueues()
        self._alive: dict[tuple[str, str], _LiveBroker] = {}

    # Requests of brokers

    def register(
        self,
        identity: BrokerIdentity,
        table: TopicConfigTable,
        connection: Hashable,
        now_ms: int,
        *,
        drop_missing: bool = False,
    ) -> MasterAddresses:
        """Register a broker and its topics in one step; see `register_steps`."""
        return run_steps(
            self.register_steps(identity, table, connection, now_ms, drop_missing=drop_missing)
        )

    def register_steps(
        self,
        identity: BrokerIdentity,
        table: TopicConfigTable,
        connection: Hashable,
        now_ms: int,
        *,
        drop_missing: bool = False,
    ) -> Generator[None, None, MasterAddresses]:
        """Register or refresh a broker and its topics; yield after each slice of many topics.

        Between two steps the table may be read and changed. The remaining topics are not entered
        if, in between, the broker is removed, registers again, or is replaced by another broker
        with its name and id.

        A broker is ignored, and gets an empty answer, if another live broker has its name and id
        and a higher state version.

        Args:
            identity: the broker.
            table: its topics, or a single change.
            connection: the connection of the broker, see `unregister_connection`.
            now_ms: the time of the registration.
            drop_missing: remove topics of the broker that `table` lacks, if `table` is complete. A
                complete table contains the topic named like the broker, which every broker creates
                at its first start.

        Raises:
            RemoteSystemError: an unregistered broker sent a single change before all its topics,
                or a limit is reached. Nothing is changed.
        """
        addresses = self._addresses(identity.broker_name)
        if self._is_outdated(identity, addresses, table.data_version):
            self.unregister(*identity.key)
            return MasterAddresses()
        self._check_admissible(identity, addresses, table)
        before = self._alive.get(identity.key)
        if before is not None and before.identity.broker_name != identity.broker_name:
            self.unregister(*identity.key)  # the address now belongs to another broker name
        broker = self._brokers.setdefault(identity.broker_name, _Broker(identity.cluster))
        broker.enable_acting_master = identity.enable_acting_master or False
        broker.zone = identity.zone
        has_least_id = identity.broker_id < min(broker.addresses, default=MASTER_ID)
        for broker_id, address in list(broker.addresses.items()):
            if address == identity.address and broker_id != identity.broker_id:
                del broker.addresses[broker_id]
        is_new = identity.broker_id not in broker.addresses
        broker.addresses[identity.broker_id] = identity.address
        known = self._alive.get(identity.key)
        is_changed = is_new or known is None or known.data_version != table.data_version
        self._alive[identity.key] = alive = _LiveBroker(
            identity,
            now_ms,
            self._broker_timeout_ms if identity.timeout_ms is None else identity.timeout_ms,
            table.data_version,
            connection,
        )
        if self._supplies_topics(identity, broker):
            yield from self._topic_steps(identity, table, is_changed=is_changed)
            if not self._is_current(identity, alive):
                return MasterAddresses()
            if drop_missing and identity.broker_name in table.topics:
                for topic in set(self._queues.of_broker(identity.broker_name)) - set(table.topics):
                    self._queues.remove(topic, identity.broker_name)
        if has_least_id:
            self._notify_min_id(broker, joined=identity)
        return self._master_of(identity, broker)

    def unregister(self, cluster: str, address: str) -> None:
        """Remove a broker, with its last address also its topics; ignore an unknown broker."""
        alive = self._alive.pop((cluster, address), None)
        if alive is None:
            return
        name, broker_id = alive.identity.broker_name, alive.identity.broker_id
        broker = self._brokers.get(name)
        if broker is None or broker.addresses.get(broker_id) != address:
            return  # another broker has registered under this name and id
        had_least_id = broker_id == min(broker.addresses)
        del broker.addresses[broker_id]
        if not broker.addresses:
            del self._brokers[name]
            self._queues.remove_broker(name)
            return
        if broker.enable_acting_master and MASTER_ID not in broker.addresses:
            self._queues.wipe_write(name)
        if had_least_id:
            self._notify_min_id(broker, left=alive.identity)

    def unregister_connection(self, connection: Hashable) -> list[BrokerIdentity]:
        """Remove the brokers that last registered over `connection`, and return them."""
        removed = [
            alive.identity for alive in self._alive.values() if alive.connection == connection
        ]
        for identity in removed:
            self.unregister(*identity.key)
        return removed

    def expire(self, now_ms: int) -> list[tuple[BrokerIdentity, Hashable]]:
        """Remove the brokers whose timeout has passed; return each with its connection."""
        expired = [
            (alive.identity, alive.connection)
            for alive in self._alive.values()
            if alive.seen_at_ms + alive.timeout_ms < now_ms
        ]
        for identity, _ in expired:
            self.unregister(*identity.key)
        return expired

    def refresh(self, cluster: str, address: str, now_ms: int) -> None:
        """Note that the broker was seen now; ignore an unknown one."""
        alive = self._alive.get((cluster, address))
        if alive is not None:
            alive.seen_at_ms = now_ms

    def live_brokers(self) -> list[BrokerIdentity]:
        """Return the brokers that are registered and have not expired."""
        return [alive.identity for alive in self._alive.values()]

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the data version of the broker's last registration; None if it is unknown."""
        alive = self._alive.get((cluster, address))
        return None if alive is None else alive.data_version

    # Requests of clients and administrators

    @property
    def queues(self) -> TopicQueues:
        """The topics, for lists of topics and changes of the write permission."""
        return self._queues

    def route(self, topic: str) -> TopicRoute | None:
        """Return the topic's queues and their brokers; None if no broker has the topic."""
        queues = self._queues.of_topic(topic)
        if not queues:
            return None
        return TopicRoute(
            tuple(queues.values()), tuple(self._broker_data(broker_name) for broker_name in queues)
        )

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that at least one broker of the cluster has, sorted."""
        return self._queues.topics_of(
            name for name, broker in self._brokers.items() if broker.cluster == cluster
        )

    def register_topic(self, topic: str, queue_datas: Sequence[QueueData]) -> None:
        """Enter queues of one topic on registered brokers, as an administrator asks.

        As in Java, the entries from the first unregistered broker on are ignored, and a topic that
        does not exist yet is not created at all if `queue_datas` names an unregistered broker.

        Raises:
            RemoteSystemError: a name is too long, or the table would exceed `topic_entries_max`.
        """
        _check_names((topic,))
        known = [data.broker_name in self._brokers for data in queue_datas]
        count = known.index(False) if False in known else len(known)
        if count < len(known) and topic not in self._queues:
            return
        existing = self._queues.of_topic(topic)
        self._check_entry_limit(
            len({data.broker_name for data in queue_datas[:count]} - existing.keys())
        )
        for data in queue_datas[:count]:
            self._queues.put(topic, data)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from all brokers, or only from the brokers of `cluster`."""
        for name in list(self._queues.of_topic(topic)):
            if cluster is None or self._brokers[name].cluster == cluster:
                self._queues.remove(topic, name)

    def members(self, cluster: str, broker_name: str) -> BrokerData:
        """Return the addresses of a broker name; without any if it is not registered."""
        if broker_name not in self._brokers:
            return BrokerData(cluster, broker_name)
        return self._broker_data(broker_name)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, and the broker names of each cluster."""
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            clusters.setdefault(broker.cluster, []).append(name)
        return ClusterInfo({name: self._broker_data(name) for name in self._brokers}, clusters)

    # Steps

    def _addresses(self, broker_name: str) -> dict[int, str]:
        broker = self._brokers.get(broker_name)
        return {} if broker is None else broker.addresses

    def _is_outdated(
        self, identity: BrokerIdentity, addresses: dict[int, str], version: DataVersion
    ) -> bool:
        """Return whether another live address has this name and id and a higher state version."""
        holder = addresses.get(identity.broker_id)
        if holder is None or holder == identity.address:
            return False
        alive = self._alive.get((identity.cluster, holder))
        return alive is not None and alive.data_version.state_version > version.state_version

    def _check_admissible(
        self, identity: BrokerIdentity, addresses: dict[int, str], table: TopicConfigTable
    ) -> None:
        if identity.broker_id not in addresses and len(table.topics) == _SINGLE_CHANGE_TOPICS:
            raise _refusal("register broker failed")
        _check_names((*_names(identity), *table.topics))
        if identity.key not in self._alive and len(self._alive) >= self._brokers_max:
            raise _refusal(f"register broker failed: brokers_max, {self._brokers_max}, is reached")
        known = self._queues.of_broker(identity.broker_name)
        self._check_entry_limit(sum(topic not in known for topic in table.topics))

    def _check_entry_limit(self, new: int) -> None:
        if len(self._queues) + new > self._topic_entries_max:
            limit = self._topic_entries_max
            raise _refusal(f"register broker failed: topic_entries_max, {limit}, is reached")

    def _supplies_topics(self, identity: BrokerIdentity, broker: _Broker) -> bool:
        """Return whether its topics are entered: for a master, or without one the lowest slave."""
        if identity.broker_id == MASTER_ID:
            return True
        is_current = identity.enable_acting_master is not None
        return is_current and identity.broker_id == min(broker.addresses)

    def _topic_steps(
        self, identity: BrokerIdentity, table: TopicConfigTable, *, is_changed: bool
    ) -> Generator[None, None, None]:
        """Enter the topics, yield after each slice of many; stop if the entry is not current."""
        is_acting_master = identity.broker_id != MASTER_ID and identity.enable_acting_master
        removed_perm = PERM_WRITE if is_acting_master else 0
        alive = self._alive[identity.key]
        topics = iter(table.topics.items())
        for _ in range(0, len(table.topics), TOPICS_PER_STEP):
            known = self._queues.of_broker(identity.broker_name)
            for name, config in islice(topics, TOPICS_PER_STEP):
                if is_changed or name not in known:
                    self._queues.put(name, _queue_data(config, identity, removed_perm))
            if len(table.topics) > TOPICS_PER_STEP:
                yield
            if not self._is_current(identity, alive):
                return

    def _is_current(self, identity: BrokerIdentity, alive: _LiveBroker) -> bool:
        """Return whether the broker was not removed, replaced or registered again since."""
        holder = self._addresses(identity.broker_name).get(identity.broker_id)
        return self._alive.get(identity.key) is alive and holder == identity.address

    def _master_of(self, identity: BrokerIdentity, broker: _Broker) -> MasterAddresses:
        address = broker.addresses.get(MASTER_ID)
        if identity.broker_id == MASTER_ID or address is None:
            return MasterAddresses()
        master = self._alive.get((identity.cluster, address))
        if master is None:
            return MasterAddresses()
        return MasterAddresses(master.identity.ha_address, address)

    def _notify_min_id(
        self,
        broker: _Broker,
        *,
        joined: BrokerIdentity | None = None,
        left: BrokerIdentity | None = None,
    ) -> None:
        min_id = min(broker.addresses)
        connections = [
            alive.connection
            for broker_id, address in broker.addresses.items()
            if (alive := self._alive.get((broker.cluster, address))) is not None
            and (left is not None or broker_id != min_id or len(broker.addresses) == 1)
        ]
        self._on_min_id_changed(
            MinIdChange(
                min_id,
                broker.addresses[min_id],
                None if left is None else left.address,
                None if joined is None else joined.ha_address,
                tuple(connections),
            )
        )

    def _broker_data(self, broker_name: str) -> BrokerData:
        broker = self._brokers[broker_name]
        return BrokerData(
            broker.cluster,
            broker_name,
            dict(sorted(broker.addresses.items())),
            broker.enable_acting_master,
            broker.zone,
        )


def run_steps(steps: Generator[None, None, _Result]) -> _Result:
    """Run all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(_Result, end.value)


# Most topics of a broker have equal data, so a registration of 5,000 topics creates few objects.
_cached_queue_data: Final = lru_cache(_QUEUE_DATA_CACHED_MAX)(QueueData)


def _queue_data(config: TopicConfig, identity: BrokerIdentity, removed_perm: int) -> QueueData:
    return _cached_queue_data(
        identity.broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm & ~removed_perm,
        config.topic_sys_flag,
    )


def _names(identity: BrokerIdentity) -> tuple[str, ...]:
    """Return the texts of a broker that the table stores."""
    zone = identity.zone or ""
    return identity.cluster, identity.broker_name, identity.address, identity.ha_address, zone


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if len(name) > NAME_LENGTH_MAX:
            raise _refusal(
                f"register broker failed: the name {name[:20]!r}... has {len(name)} characters, "
                f"the limit is {NAME_LENGTH_MAX}"
            )


def _refusal(reason: str) -> RemoteSystemError:
    return RemoteSystemError(ResponseCode.SYSTEM_ERROR, reason)


_SYNC_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Prefix of the topics by which brokers look up their own group; these routes stay unchanged."""


def with_acting_masters(topic: str, route: TopicRoute) -> TopicRoute:
    """Return the route with an acting master for each broker name without a master.

    The acting master is the slave with the lowest id, shown under id 0. A broker name gets one only
    if its slaves allow it (`enable_acting_master`) and its queues are not writable.
    """
    if topic.startswith(_SYNC_MEMBER_PREFIX):
        return route
    unwritable = {data.broker_name for data in route.queue_datas if not is_writable(data.perm)}
    brokers = tuple(
        _acting(broker) if broker.broker_name in unwritable else broker
        for broker in route.broker_datas
    )
    return replace(route, broker_datas=brokers)


def _acting(broker: BrokerData) -> BrokerData:
    addresses = dict(broker.broker_addrs)
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    return replace(broker, broker_addrs={MASTER_ID: addresses.pop(min(addresses)), **addresses})


ZONE_NAME: Final = "__ZONE_NAME"
"""Header field: the broker's zone in a registration, the requested zone in a route request."""

_ZONE_MODE: Final = "__ZONE_MODE"


def requested_zone(fields: Mapping[str, str]) -> str | None:
    """Return the zone that the header fields of a route request ask for; None for all zones."""
    zone = fields.get(ZONE_NAME, "").strip()
    return zone if zone and fields.get(_ZONE_MODE, "").lower() == "true" else None


def filter_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """Return the route reduced to the brokers of `zone` (case-insensitive) and their queues.

    A broker name without a master stays in the route whatever its zone, because only its slaves can
    still be read.
    """
    brokers = tuple(
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    )
    names = {broker.broker_name for broker in brokers}
    queues = tuple(data for data in route.queue_datas if data.broker_name in names)
    return replace(route, broker_datas=brokers, queue_datas=queues)
