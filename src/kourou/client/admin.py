"""AdminClient: topics, consumer groups and brokers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kourou.client import calls_admin
from kourou.client.calls_admin import Server
from kourou.client.config import AdminConfig
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import CallingClient
from kourou.client.retrying import Deadline
from kourou.errors import (
    GroupNotFoundError,
    InvalidTopicError,
    NoRouteError,
    RemoteSystemError,
    RequestNotSupportedError,
    RequestTimeoutError,
    TopicNotFoundError,
    TransportError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute
from kourou.model.topic import (
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    check_group,
    check_topic,
    is_system_topic,
)
from kourou.protocol.bodies import (
    ClusterInfo,
    ConsumeOffset,
    TopicStatsTable,
    decode_cluster_info,
    decode_topic_list,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.remoting.runtime import Runtime

T = TypeVar("T")

DEFAULT_QUEUES: Final = 8
"""Queues of a new topic on each broker, as brokers give a topic that they create by themselves."""

_ROUTE_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Who consumes as a group, and how far it is.

    Attributes:
        group: its name.
        members: client ids of its live members, sorted.
        offsets: where it stands in each queue that it committed or subscribed.
        consume_tps: messages a second, as brokers count them.
    """

    group: str
    members: tuple[str, ...] = ()
    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def lag(self) -> int:
        """Messages stored and not committed, over all queues."""
        return sum(
            max(0, offset.broker_offset - offset.consumer_offset)
            for offset in self.offsets.values()
        )


class AdminClient(CallingClient):
    """Creates, deletes and describes topics and consumer groups.

    What changes something asks every master concerned, one after the other, and stops at the first
    that refuses: calling it again completes the rest. All calls raise ClosedError before `start`
    and after `close`, ConnectFailedError when no name server answers, another TransportError when
    a broker does not answer within `admin_timeout_ms`, and RemoteError when one refuses.
    Cancelling leaves some servers asked and others not.

    Args:
        namesrv_addr: `host:port`, or several joined by `;`.
        config: limits and timeouts.
        runtime: the outside world, for tests; None for the real one.

    Raises:
        ConfigError: `namesrv_addr` does not parse.
    """

    def __init__(
        self,
        namesrv_addr: str,
        *,
        config: AdminConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._config = config or AdminConfig()
        super().__init__(ClientInstance(namesrv_addr, self._config, runtime, kind="admin client"))

    # Clusters

    async def cluster_info(self) -> ClusterInfo:
        """Return the brokers and clusters that a name server knows."""
        return decode_cluster_info(await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO))

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return what the broker at `host:port` tells of itself: RocketMQ's names -> texts."""
        self._instance.check_open()
        return await calls_admin.runtime_info(self._server(address))

    # Topics

    async def topic_list(self) -> list[str]:
        """Return the names of all topics, the system's own included, sorted."""
        body = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_topic_list(body))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return which brokers hold the topic.

        Raises:
            TopicNotFoundError: no name server knows it.
        """
        self._instance.check_open()
        check_topic(topic)
        try:
            return await self._instance.routes.refresh(topic, self._timeout_s)
        except NoRouteError as error:
            raise TopicNotFoundError(ResponseCode.TOPIC_NOT_EXIST, str(error)) from error

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker_name: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic or change it, and return when the name servers know it.

        Args:
            topic: its name.
            queues: on each broker, for reading and writing alike.
            perm: PERM_READ, PERM_WRITE and PERM_INHERIT of `kourou.model.topic` together.
            order: declare it ordered.
            attributes: to set; others stay.
            broker_name: only on that broker.
            cluster: only on the brokers of that cluster.

        Raises:
            InvalidTopicError: the name is not valid, or the system's own.
            NoRouteError: there is no such broker or cluster, or no broker at all.
            RequestTimeoutError: all brokers have it, but no name server told so in time.
        """
        _check_own_topic(topic)
        config = TopicConfig(
            topic, queues, queues, perm, order=order, attributes=dict(attributes or {})
        )
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        for server in masters.values():
            await calls_admin.create_topic(server, config)
        await self._wait_for_route(topic, masters.keys())

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all brokers.

        Raises:
            InvalidTopicError: the name is not valid, or the system's own.
            TopicNotFoundError: no name server knows it.
        """
        _check_own_topic(topic)
        for server in (await self._topic_masters(topic)).values():
            await calls_admin.delete_topic(server, topic)
        for address in await self._instance.name_servers.all():
            try:
                await calls_admin.forget_topic(self._server(address), topic)
            except (RequestNotSupportedError, TransportError):
                # Ours forgets what brokers no longer register; one that is away asks them again.
                continue

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return what each broker knows of the topic, by broker name.

        Raises:
            TopicNotFoundError: no name server knows it.
        """
        masters = await self._topic_masters(topic)
        return await _ask_all(masters, lambda server: calls_admin.topic_config(server, topic))

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Return what the topic's queues hold, over all brokers, sorted by queue.

        Raises:
            TopicNotFoundError: no name server knows it.
        """
        masters = await self._topic_masters(topic)
        parts = await _ask_all(masters, lambda server: calls_admin.topic_stats(server, topic))
        offsets = {queue: found for part in parts.values() for queue, found in part.offsets.items()}
        return TopicStatsTable(
            dict(sorted(offsets.items())), sum(part.topic_put_tps for part in parts.values())
        )

    # Groups

    async def group_list(self) -> list[SubscriptionGroup]:
        """Return the consumer groups of all brokers, sorted by name; of several, any one's view."""
        tables = await _ask_all(await self._masters(), calls_admin.group_table)
        groups = {name: found for part in tables.values() for name, found in part.groups.items()}
        return [groups[name] for name in sorted(groups)]

    async def describe_group(self, group: str) -> GroupDescription:
        """Return who consumes as a group, and how far it is.

        Raises:
            InvalidGroupError: the name is not valid.
            GroupNotFoundError: no broker knows the group.
        """
        check_group(group)
        masters = await self._masters()
        tables = await _ask_all(masters, calls_admin.group_table)
        knowing = {name: masters[name] for name, part in tables.items() if group in part.groups}
        if not knowing:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows the group {group}"
            )
        stats = await _ask_all(knowing, lambda server: calls_admin.consume_stats(server, group))
        members = await _ask_all(knowing, lambda server: _members(server, group))
        offsets = {queue: found for part in stats.values() for queue, found in part.offsets.items()}
        return GroupDescription(
            group,
            tuple(sorted({member for ids in members.values() for member in ids})),
            dict(sorted(offsets.items())),
            sum(part.consume_tps for part in stats.values()),
        )

    async def create_group(self, group: SubscriptionGroup) -> None:
        """Create a consumer group on all brokers, or change it.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group.group_name)
        for server in (await self._masters()).values():
            await calls_admin.create_group(server, group)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on all brokers.

        Args:
            group: its name.
            clean_offsets: forget its committed offsets too, which cannot be undone.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group)
        for server in (await self._masters()).values():
            await calls_admin.delete_group(server, group, clean_offsets=clean_offsets)

    # Servers

    @property
    def _timeout_s(self) -> float:
        return self._config.admin_timeout_ms / 1000

    def _server(self, address: str) -> Server:
        return Server(self._instance.pool, address, self._timeout_s)

    async def _ask_name_server(self, code: int) -> bytes:
        self._instance.check_open()
        answer = await self._instance.name_servers.request(request(code), self._timeout_s)
        return answer.body

    async def _masters(
        self, *, broker_name: str | None = None, cluster: str | None = None
    ) -> dict[str, Server]:
        """Return the masters asked for, by broker name.

        Raises:
            NoRouteError: there is none.
        """
        info = await self.cluster_info()
        masters = {
            name: self._server(broker.broker_addrs[MASTER_ID])
            for name, broker in sorted(info.brokers.items())
            if MASTER_ID in broker.broker_addrs
            and broker_name in (None, name)
            and cluster in (None, broker.cluster)
        }
        if not masters:
            asked = " ".join(
                f"{what} {name}"
                for what, name in (("named", broker_name), ("in cluster", cluster))
                if name is not None
            )
            known = ", ".join(sorted(info.brokers)) or "none"
            raise NoRouteError(f"no broker {asked}".rstrip() + f" has a master; known are: {known}")
        return masters

    async def _topic_masters(self, topic: str) -> dict[str, Server]:
        route = await self.topic_route(topic)
        return {
            broker.broker_name: self._server(broker.broker_addrs[MASTER_ID])
            for broker in route.broker_datas
            if MASTER_ID in broker.broker_addrs
        }

    async def _wait_for_route(self, topic: str, broker_names: Iterable[str]) -> None:
        deadline = Deadline(self._config.admin_timeout_ms)
        while deadline.remaining_s() > 0:
            try:
                route = await self.topic_route(topic)
            except TopicNotFoundError:
                route = TopicRoute((), ())
            if set(broker_names) <= {queues.broker_name for queues in route.queue_datas}:
                return
            await asyncio.sleep(_ROUTE_POLL_S)
        raise RequestTimeoutError(
            f"topic {topic} is created, but the name servers did not tell so within "
            f"{self._config.admin_timeout_ms} ms"
        )


async def _ask_all(
    servers: Mapping[str, Server], call: Callable[[Server], Awaitable[T]]
) -> dict[str, T]:
    """Ask all servers at once; fail as the first that fails."""
    answers = await asyncio.gather(*map(call, servers.values()))
    return dict(zip(servers, answers, strict=True))


async def _members(server: Server, group: str) -> list[str]:
    try:
        return await calls_admin.consumer_ids(server, group)
    except RemoteSystemError:
        return []  # how brokers say that nobody is there


def _check_own_topic(topic: str) -> None:
    check_topic(topic)
    if is_system_topic(topic):
        raise InvalidTopicError(f"topic {topic} is the system's own")
