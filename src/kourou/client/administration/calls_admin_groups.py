"""Requests of administration about groups: each coroutine asks one server, once.

All raise TransportError when no answer comes and RemoteError when the server refuses.
"""

from __future__ import annotations

from dataclasses import replace

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import own_of, plain
from kourou.model.group import SubscriptionGroup
from kourou.model.namespace import in_namespace
from kourou.protocol.bodies import (
    ConsumeStats,
    SubscriptionGroupTable,
    decode_consume_stats,
    decode_consumer_list,
    decode_subscription_group_table,
    encode_subscription_group,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.headers_admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
)
from kourou.protocol.headers_consume import GetConsumerListByGroupRequestHeader


async def group_table(broker: Server) -> SubscriptionGroupTable:
    """Return all consumer groups of one broker."""
    header = GetAllSubscriptionGroupRequestHeader()
    body = await broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
    told = decode_subscription_group_table(body)
    return replace(told, groups=own_of(broker.pool.namespace, told.groups))


async def create_group(broker: Server, group: SubscriptionGroup) -> None:
    """Create the group on one broker, or change it: attributes given are set, others stay."""
    changes = {f"+{name}": value for name, value in group.attributes.items()}
    body = encode_subscription_group(replace(group, attributes=changes))
    await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def delete_group(broker: Server, group: str, *, clean_offsets: bool) -> None:
    """Delete the group on one broker, its committed offsets too if so asked."""
    header = DeleteSubscriptionGroupRequestHeader(group, clean_offset=clean_offsets)
    await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


async def consume_stats(broker: Server, group: str, topic: str | None = None) -> ConsumeStats:
    """Return where the group stands in the queues of one broker, of all topics or of one.

    A topic that is asked for in the list is told even if the live members do not subscribe to it.
    """
    namespace = broker.pool.namespace
    topics = None if topic is None else f"{in_namespace(namespace, topic)};"
    header = GetConsumeStatsRequestHeader(group, topic, topics)
    body = await broker.ask(RequestCode.GET_CONSUME_STATS, header)
    return plain(namespace, decode_consume_stats(body))


async def consumer_ids(broker: Server, group: str) -> list[str]:
    """Return the client ids of the group's members that one broker knows."""
    header = GetConsumerListByGroupRequestHeader(group)
    body = await broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    return decode_consumer_list(body)
