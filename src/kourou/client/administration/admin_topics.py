"""AdminClient methods for topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kourou.client.administration import admin_namesrv
from kourou.client.administration.admin_calls import AdminCalls, Server, call_all
from kourou.client.administration.plain_names import own_entries, own_names, with_plain_names
from kourou.client.retrying import Deadline
from kourou.errors import (
    InvalidTopicError,
    QueryNotFoundError,
    RequestNotSupportedError,
    RequestTimeoutError,
    TopicNotFoundError,
    TransportError,
)
from kourou.model.namespace import with_namespace
from kourou.model.route import TopicRoute, format_order_topic_conf, parse_order_topic_conf
from kourou.model.topic import AUTO_CREATE_TOPIC, TopicConfig, check_topic, is_system_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.connections import QueryTopicConsumeByWhoRequestHeader, decode_group_list
from kourou.protocol.kv_config import GetKVConfigRequestHeader, GetKVConfigResponseHeader
from kourou.protocol.offsets import parse_topic_begin
from kourou.protocol.routes import GetTopicsByClusterRequestHeader
from kourou.protocol.stats import (
    GetTopicStatsInfoRequestHeader,
    TopicStatsTable,
    decode_topic_stats,
)
from kourou.protocol.topic_table import GetAllTopicConfigRequestHeader, decode_topic_config_table
from kourou.protocol.topics import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    decode_topic_config,
    decode_topic_list,
)

T = TypeVar("T")

DEFAULT_QUEUES: Final = 8
"""Queues of a new topic on each broker, the same as of a topic created automatically."""

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The key-value namespace of name servers with the queues of ordered topics."""

_ROUTE_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Change:
    """Changes of a topic; None keeps the current value, or the default of a new topic."""

    read_queues: int | None
    write_queues: int | None
    perm: int | None
    order: bool | None
    attributes: Mapping[str, str | None]

    def applied_to(self, current: TopicConfig) -> TopicConfig:
        """Return the topic config with all changes except attributes, which brokers merge."""
        return replace(
            current,
            read_queue_nums=_or_default(self.read_queues, current.read_queue_nums),
            write_queue_nums=_or_default(self.write_queues, current.write_queue_nums),
            perm=_or_default(self.perm, current.perm),
            order=_or_default(self.order, current.order),
        )


class TopicAdmin(AdminCalls):
    """Creates, changes, deletes and describes topics."""

    async def topic_list(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics or of a cluster's, sorted, with system topics."""
        if cluster is None:
            answer = await self._request_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            header = GetTopicsByClusterRequestHeader(cluster)
            answer = await self._request_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        return sorted(own_names(self._config.namespace, decode_topic_list(answer.body)))

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker_name: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create or change a topic, and return when its route has the queues.

        On a broker that has the topic, arguments that are None keep the current values. On other
        brokers they default to 8 queues (`DEFAULT_QUEUES`), readable and writable, not ordered.
        Concurrent changes of one topic may overwrite each other.

        Args:
            topic: the topic.
            queues: number of queues on each broker, for reading and writing.
            read_queues: number of queues that consumers read, if it differs from `queues`. To
                remove queues, first lower `write_queues`; lower this when the last ones are
                consumed.
            write_queues: number of queues that producers write, if it differs from `queues`.
            perm: a combination of PERM_READ, PERM_WRITE and PERM_INHERIT of `kourou.model.topic`.
            order: True: the list of queues does not change while a broker is down, so that messages
                with one key stay in one queue. The number of queues is stored at the name servers,
                which include it in routes if their `orderMessageEnable` is on. False: the topic is
                no longer ordered.
            attributes: attributes to set, such as `message.type`; a value of None removes one.
                Other attributes are kept.
            broker_name: only on this broker.
            cluster: only on the brokers of this cluster.

        Raises:
            InvalidTopicError: the name is not valid, or is a system topic.
            NoRouteError: there is no such broker or cluster, or no broker at all.
            RequestTimeoutError: all brokers have the topic, but no name server returned its route
                in time.
        """
        _check_own_topic(topic)
        change = _Change(
            _or_default(read_queues, queues),
            _or_default(write_queues, queues),
            perm,
            order,
            dict(attributes or {}),
        )
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        configs = {}
        for name, server in masters.items():
            try:
                current = await topic_config(server, topic)
            except TopicNotFoundError:
                current = TopicConfig(topic, DEFAULT_QUEUES, DEFAULT_QUEUES)
            configs[name] = change.applied_to(current)
            await put_topic(server, configs[name], change.attributes)
        await self._wait_for_route(topic, configs)
        if order is not None or any(config.order for config in configs.values()):
            await self._store_order_conf(topic, configs, order)

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Change a topic as `create_topic`, but only on brokers that already have it.

        Raises:
            TopicNotFoundError: the name servers do not have the topic, or it is not on the named
                broker.
            InvalidTopicError, RequestTimeoutError: as `create_topic`.
        """
        _check_own_topic(topic)
        holders = await self._topic_masters(topic)
        if broker_name is not None and broker_name not in holders:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} is not on {broker_name}, but on: {', '.join(sorted(holders))}",
            )
        for name in [broker_name] if broker_name is not None else sorted(holders):
            await self.create_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=perm,
                order=order,
                attributes=attributes,
                broker_name=name,
            )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all brokers.

        Raises:
            InvalidTopicError: the name is not valid, or is a system topic.
            TopicNotFoundError: the name servers do not have the topic.
        """
        _check_own_topic(topic)
        for server in (await self._topic_masters(topic)).values():
            await delete_topic(server, topic)
        if await self._order_conf(topic) is not None:
            await self._put_order_conf(topic, "")
        for address in await self._instance.name_servers.all():
            try:
                await forget_topic(self._server(address), topic)
            except (RequestNotSupportedError, TransportError):
                # Kourou's name server removes topics that brokers no longer register. One that is
                # not reached gets all topics from the brokers when it is back.
                continue

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return the config of the topic on each broker, by broker name.

        Raises:
            TopicNotFoundError: the name servers do not have the topic.
        """
        masters = await self._topic_masters(topic)
        return await call_all(masters, lambda server: topic_config(server, topic))

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Return the offsets of the topic's queues on all brokers, sorted by queue.

        Raises:
            TopicNotFoundError: the name servers do not have the topic.
        """
        masters = await self._topic_masters(topic)
        parts = await call_all(masters, lambda server: topic_stats(server, topic))
        offsets = {queue: found for part in parts.values() for queue, found in part.offsets.items()}
        return TopicStatsTable(
            dict(sorted(offsets.items())), sum(part.topic_put_tps for part in parts.values())
        )

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the consumer groups that consume the topic or have committed in it, sorted.

        Raises:
            TopicNotFoundError: the name servers do not have the topic.
        """
        masters = await self._topic_masters(topic)
        parts = await call_all(masters, lambda server: topic_groups(server, topic))
        return sorted({group for part in parts.values() for group in part})

    async def _wait_for_route(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Wait until the route has the topic's queues on these brokers."""
        wanted = {
            (name, config.read_queue_nums, config.write_queue_nums)
            for name, config in configs.items()
        }
        deadline = Deadline(self._config.admin_timeout_ms)
        while deadline.remaining_s() > 0:
            try:
                route = await self.topic_route(topic)
            except TopicNotFoundError:
                route = TopicRoute((), ())
            if wanted <= {
                (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums)
                for queues in route.queue_datas
            }:
                return
            await asyncio.sleep(_ROUTE_POLL_S)
        raise RequestTimeoutError(
            f"topic {topic} is created, but the name servers did not return its route within "
            f"{self._config.admin_timeout_ms} ms"
        )

    async def _store_order_conf(
        self,
        topic: str,
        configs: Mapping[str, TopicConfig],
        order: bool | None,  # noqa: FBT001  # None: unchanged
    ) -> None:
        """Store the number of an ordered topic's queues on these brokers at the name servers.

        Source: UpdateTopicSubCommand.java, DefaultMQAdminExtImpl.createOrUpdateOrderConf.
        """
        current = await self._order_conf(topic)
        before = {} if current is None else dict(parse_order_topic_conf(current))
        after = dict(before)
        for name, config in configs.items():
            if order or (order is None and name in before):
                after[name] = config.write_queue_nums
            elif order is False:
                after.pop(name, None)
        if after != before:
            await self._put_order_conf(topic, format_order_topic_conf(sorted(after.items())))

    async def _put_order_conf(self, topic: str, conf: str) -> None:
        """Set the entry of an ordered topic at all name servers; "" removes it."""
        key = self._order_key(topic)

        async def put(server: Server) -> None:
            if conf:
                await admin_namesrv.kv_put(server, ORDER_TOPIC_CONFIG, key, conf)
            else:
                await admin_namesrv.kv_delete(server, ORDER_TOPIC_CONFIG, key)

        await self._call_name_servers(put)

    async def _order_conf(self, topic: str) -> str | None:
        """Return the entry of an ordered topic, `broker:queues;broker:queues`; None if missing.

        It is read as key-value configuration, because routes have it only with
        `orderMessageEnable`.
        """
        header = GetKVConfigRequestHeader(ORDER_TOPIC_CONFIG, self._order_key(topic))
        try:
            answer = await self._request_name_server(RequestCode.GET_KV_CONFIG, header)
        except QueryNotFoundError:
            return None
        return answer.header(GetKVConfigResponseHeader).value or None

    def _order_key(self, topic: str) -> str:
        """Return the key of an ordered topic's entry, which has the namespace."""
        return with_namespace(self._config.namespace, topic)


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def _check_own_topic(topic: str) -> None:
    check_topic(topic)
    if is_system_topic(topic):
        raise InvalidTopicError(f"topic {topic} is a system topic, which cannot be changed")


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def put_topic(
    broker: Server, config: TopicConfig, attributes: Mapping[str, str | None]
) -> None:
    """Create or change the topic, durably.

    Args:
        broker: the broker.
        config: the topic config; its attributes are not sent.
        attributes: attributes to set; a value of None removes one. Others are kept.
    """
    changes = (
        f"-{name}" if value is None else f"+{name}={value}" for name, value in attributes.items()
    )
    header = CreateTopicRequestHeader(
        topic=config.name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(changes),
    )
    await broker.request_body(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def delete_topic(broker: Server, topic: str) -> None:
    """Delete the topic and its messages on one broker."""
    await broker.request_body(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))


async def forget_topic(name_server: Server, topic: str) -> None:
    """Delete the topic's route; a broker that still has the topic registers it again."""
    await name_server.request_body(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicRequestHeader(topic)
    )


async def topic_config(broker: Server, topic: str) -> TopicConfig:
    """Return the config of the topic on one broker.

    Raises:
        TopicNotFoundError: the broker does not have the topic.
    """
    header = GetTopicConfigRequestHeader(topic)
    try:
        body = await broker.request_body(RequestCode.GET_TOPIC_CONFIG, header)
        return with_plain_names(broker.pool.namespace, decode_topic_config(body))
    except RequestNotSupportedError:
        pass  # a broker before 5.0 has only the request for all topics
    table = await broker.request_body(
        RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader()
    )
    topics = decode_topic_config_table(table).topics
    found = own_entries(broker.pool.namespace, topics).get(topic)
    if found is None:
        raise TopicNotFoundError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} is not on {broker.address}"
        )
    return found


async def topic_stats(broker: Server, topic: str) -> TopicStatsTable:
    """Return the offsets of the topic's queues on one broker."""
    stats, _ = await topic_stats_and_begin(broker, topic)
    return stats


async def topic_stats_and_begin(broker: Server, topic: str) -> tuple[TopicStatsTable, int | None]:
    """Return what `topic_stats` does, and the `TOPIC_BEGIN_FIELD`; None: the broker has none."""
    header = GetTopicStatsInfoRequestHeader(topic)
    answer = await broker.request(RequestCode.GET_TOPIC_STATS_INFO, header)
    stats = with_plain_names(broker.pool.namespace, decode_topic_stats(answer.body))
    return stats, parse_topic_begin(answer.ext_fields)


async def topic_groups(broker: Server, topic: str) -> list[str]:
    """Return the groups that consume the topic at one broker, or have committed there."""
    header = QueryTopicConsumeByWhoRequestHeader(topic)
    body = await broker.request_body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    return with_plain_names(broker.pool.namespace, decode_group_list(body))
