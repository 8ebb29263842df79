"""Administration requests for groups: each coroutine sends one request, without retries.

All raise TransportError if no answer arrives and RemoteError if the server refuses.
"""

from __future__ import annotations

from dataclasses import replace

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import own_entries, with_plain_names
from kourou.model.group import SubscriptionGroup
from kourou.model.namespace import with_namespace
from kourou.protocol.clients import GetConsumerListByGroupRequestHeader, decode_consumer_list
from kourou.protocol.codes import RequestCode
from kourou.protocol.groups import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    SubscriptionGroupTable,
    decode_subscription_group_table,
    encode_subscription_group,
)
from kourou.protocol.stats import ConsumeStats, GetConsumeStatsRequestHeader, decode_consume_stats


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
