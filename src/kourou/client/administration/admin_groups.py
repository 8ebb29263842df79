"""AdminClient methods for consumer groups, and their request modes: pull or pop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, Unpack

from kourou.client.administration import admin_clients
from kourou.client.administration.admin_calls import AdminCalls, Server, call_all
from kourou.client.administration.plain_names import own_entries, with_plain_names
from kourou.errors import (
    ConfigError,
    GroupNotFoundError,
    NoRouteError,
    RemoteSystemError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.namespace import with_namespace
from kourou.model.queue import MessageQueue
from kourou.model.topic import check_group
from kourou.protocol.clients import GetConsumerListByGroupRequestHeader, decode_consumer_list
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.connections import Connection
from kourou.protocol.groups import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    SubscriptionGroupTable,
    decode_subscription_group_table,
    encode_subscription_group,
)
from kourou.protocol.queue_assignment import (
    MessageRequestMode,
    SetMessageRequestMode,
    decode_message_request_modes,
    encode_message_request_mode,
)
from kourou.protocol.stats import (
    ConsumeOffset,
    ConsumeStats,
    GetConsumeStatsRequestHeader,
    decode_consume_stats,
)

GROUPS_AT_A_TIME: Final = 16
"""Maximum number of groups that are described concurrently."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Members and offsets of a consumer group.

    Attributes:
        group: the consumer group.
        members: client ids of the live members, sorted.
        offsets: the offsets in each queue that the group has subscribed or committed.
        consume_tps: messages per second, as counted by brokers.
        differences: for each topic to which members subscribe differently, a text with the members
            and their subscriptions; such a group loses messages. Only `describe_group` requests it,
            and only Kourou's brokers report it.
        connections: address, language and version of the live members, sorted by client id. Only
            `describe_group` requests them.
    """

    group: str
    members: tuple[str, ...] = ()
    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0
    differences: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()

    @property
    def lag(self) -> int:
        """The number of messages stored but not committed, over all queues."""
        return sum(
            max(0, offset.broker_offset - offset.consumer_offset)
            for offset in self.offsets.values()
        )


class GroupChanges(TypedDict, total=False):
    """Arguments of `update_group`: attributes of `kourou.model.group.SubscriptionGroup`."""

    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    group_retry_policy: Mapping[str, object]
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    group_sys_flag: int
    consume_timeout_minute: int
    attributes: Mapping[str, str]


class GroupAdmin(AdminCalls):
    """Creates, deletes and describes consumer groups, and sets their request modes."""

    async def group_list(self) -> list[SubscriptionGroup]:
        """Return the consumer groups of all brokers, sorted by name.

        For a group on several brokers, the settings of one of them are returned.
        """
        tables = await call_all(await self._masters(), group_table)
        groups = {name: found for part in tables.values() for name, found in part.groups.items()}
        return [groups[name] for name in sorted(groups)]

    async def group_config(self, group: str) -> dict[str, SubscriptionGroup]:
        """Return the settings of the group on each broker, by broker name.

        Raises:
            InvalidGroupError: the name is not valid.
            GroupNotFoundError: no broker has the group.
        """
        check_group(group)
        # Request all groups: a request for one creates it on brokers with automatic creation.
        tables = await call_all(await self._masters(), group_table)
        known = {
            name: table.groups[group] for name, table in tables.items() if group in table.groups
        }
        if not known:
            raise _group_not_found(group)
        return known

    async def describe_group(self, group: str) -> GroupDescription:
        """Return the members and offsets of a group.

        Raises:
            InvalidGroupError: the name is not valid.
            GroupNotFoundError: no broker has the group.
        """
        check_group(group)
        found = await self.describe_groups([group])
        if not found:
            raise _group_not_found(group)
        if not found[0].members:
            return found[0]
        live = await admin_clients.live_connection(await self._masters(), group)
        if live is None:
            return found[0]  # the members have left in the meantime
        return replace(
            found[0], differences=tuple(live.differences), connections=tuple(live.connections)
        )

    async def describe_groups(self, groups: Iterable[str] | None = None) -> list[GroupDescription]:
        """Return the members and offsets of groups, sorted by group name.

        Args:
            groups: the groups; unknown ones are left out. None: all groups.
        """
        masters = await self._masters()
        tables = await call_all(masters, group_table)
        known = {name for table in tables.values() for name in table.groups}
        semaphore = asyncio.Semaphore(GROUPS_AT_A_TIME)

        async def describe(group: str) -> GroupDescription:
            brokers = {name: masters[name] for name, part in tables.items() if group in part.groups}
            async with semaphore:
                return await _describe(group, brokers)

        wanted = known if groups is None else known.intersection(groups)
        return list(await asyncio.gather(*map(describe, sorted(wanted))))

    async def create_group(
        self,
        group: SubscriptionGroup,
        *,
        broker_name: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a consumer group on all brokers, or replace its settings.

        Args:
            group: all settings of the group. Its attributes are added; other existing attributes
                are kept.
            broker_name: only on this broker.
            cluster: only on the brokers of this cluster.

        Raises:
            InvalidGroupError: the name is not valid.
            NoRouteError: there is no such broker or cluster, or no broker at all.
        """
        check_group(group.group_name)
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        for server in masters.values():
            await create_group(server, group)

    async def update_group(
        self,
        group: str,
        *,
        broker_name: str | None = None,
        cluster: str | None = None,
        **changes: Unpack[GroupChanges],
    ) -> None:
        """Change some settings of a consumer group on the brokers that have it.

        Args:
            group: the consumer group.
            broker_name: only on this broker.
            cluster: only on the brokers of this cluster.
            changes: attributes of `SubscriptionGroup`, by name.

        Raises:
            InvalidGroupError: the name is not valid.
            NoRouteError: there is no such broker or cluster.
            GroupNotFoundError: none of these brokers has the group.
        """
        check_group(group)
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        tables = await call_all(masters, group_table)
        known = {name: table.groups.get(group) for name, table in tables.items()}
        if not any(known.values()):
            raise _group_not_found(group)
        for name, current in known.items():
            if current is not None:
                changed = replace(current, **changes)
                await create_group(masters[name], changed)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on all brokers; a group that does not exist is no error.

        On brokers with automatic creation of groups, the next heartbeat of a live member creates it
        again. Its retry and dead-letter topics are kept. Kourou's brokers delete its pop retry
        topics, and drop its popped messages.

        Args:
            group: the consumer group.
            clean_offsets: delete its committed offsets as well, which cannot be undone.

        Raises:
            InvalidGroupError: the name is not valid.
        """
        check_group(group)
        for server in (await self._masters()).values():
            await delete_group(server, group, clean_offsets=clean_offsets)

    async def set_request_mode(
        self,
        topic: str,
        group: str,
        *,
        is_pop: bool,
        share_queues: int = 0,
        broker_name: str | None = None,
    ) -> list[str]:
        """Set the request mode of a group for a topic: pull or pop.

        It applies to members whose queues are assigned by brokers. Called setConsumeMode in Java.
        The mode is durable on each broker in the result. Members get it by their next assignment
        request, within 20 s.

        Args:
            topic: an existing topic; not a retry topic.
            group: the consumer group.
            is_pop: True for pop.
            share_queues: with pop, the number of other members that read the queues of a member
                too; 0: all.
            broker_name: only on this broker; None: on all brokers of the topic.

        Returns:
            The names of the brokers, sorted.

        Raises:
            InvalidGroupError, InvalidTopicError: a name is not valid.
            ConfigError: `share_queues` is negative.
            TopicNotFoundError: the name servers do not have the topic.
            NoRouteError: the topic is not on the named broker.
            NoPermissionError: the topic is a retry topic.
        """
        check_group(group)
        if share_queues < 0:
            raise ConfigError(f"share_queues is {share_queues}: it must not be negative")
        masters = await self._topic_masters(topic)
        if broker_name is not None:
            if broker_name not in masters:
                raise NoRouteError(
                    f"topic {topic} is not on {broker_name}, but on: {', '.join(masters)}"
                )
            masters = {broker_name: masters[broker_name]}
        mode = MessageRequestMode.POP if is_pop else MessageRequestMode.PULL
        body = encode_message_request_mode(SetMessageRequestMode(topic, group, mode, share_queues))
        for server in masters.values():
            await server.request_body(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        return sorted(masters)

    async def request_modes(
        self,
    ) -> dict[str, Mapping[str, Mapping[str, SetMessageRequestMode]]]:
        """Return the request modes by broker name, topic and group."""
        answers = await call_all(
            await self._masters(),
            lambda server: server.request_body(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        )
        return {
            name: own_entries(
                self._config.namespace, decode_message_request_modes(body).message_request_mode_map
            )
            for name, body in answers.items()
        }


def _group_not_found(group: str) -> GroupNotFoundError:
    return GroupNotFoundError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker has the group {group}"
    )


async def _describe(group: str, brokers: Mapping[str, Server]) -> GroupDescription:
    """Return the members and offsets of a group that the given brokers have."""
    stats, members = await asyncio.gather(
        call_all(brokers, lambda server: consume_stats(server, group)),
        call_all(brokers, lambda server: live_members(server, group)),
    )
    offsets = {queue: found for part in stats.values() for queue, found in part.offsets.items()}
    return GroupDescription(
        group,
        tuple(sorted({member for ids in members.values() for member in ids})),
        dict(sorted(offsets.items())),
        sum(part.consume_tps for part in stats.values()),
    )


async def live_members(server: Server, group: str) -> list[str]:
    """Return the client ids of the group's members that are connected to one broker."""
    try:
        return await consumer_ids(server, group)
    except RemoteSystemError:
        return []  # brokers answer with this error if the group has no live member


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def group_table(broker: Server) -> SubscriptionGroupTable:
    """Return all consumer groups of one broker."""
    header = GetAllSubscriptionGroupRequestHeader()
    body = await broker.request_body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
    table = decode_subscription_group_table(body)
    return replace(table, groups=own_entries(broker.pool.namespace, table.groups))


async def create_group(broker: Server, group: SubscriptionGroup) -> None:
    """Create or change the group on one broker; attributes are added, existing ones are kept."""
    changes = {f"+{name}": value for name, value in group.attributes.items()}
    body = encode_subscription_group(replace(group, attributes=changes))
    await broker.request_body(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def delete_group(broker: Server, group: str, *, clean_offsets: bool) -> None:
    """Delete the group on one broker, optionally with its committed offsets."""
    header = DeleteSubscriptionGroupRequestHeader(group, clean_offset=clean_offsets)
    await broker.request_body(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


async def consume_stats(broker: Server, group: str, topic: str | None = None) -> ConsumeStats:
    """Return the offsets of the group in the queues of one broker, of all topics or of one.

    The topic is also sent in the list `topics`, so that the broker reports it even if the live
    members do not subscribe to it.
    """
    namespace = broker.pool.namespace
    topics = None if topic is None else f"{with_namespace(namespace, topic)};"
    header = GetConsumeStatsRequestHeader(group, topic, topics)
    body = await broker.request_body(RequestCode.GET_CONSUME_STATS, header)
    return with_plain_names(namespace, decode_consume_stats(body))


async def consumer_ids(broker: Server, group: str) -> list[str]:
    """Return the client ids of the group's members connected to one broker."""
    header = GetConsumerListByGroupRequestHeader(group)
    body = await broker.request_body(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    return decode_consumer_list(body)
