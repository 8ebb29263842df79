"""Administration requests for brokers: each coroutine sends one request, without retries.

All raise TransportError if no answer arrives and RemoteError if the server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import counter_key, own_entries, with_plain_names
from kourou.protocol.codes import RequestCode
from kourou.protocol.connections import QueryTopicConsumeByWhoRequestHeader, decode_group_list
from kourou.protocol.kv_config import decode_kv_table
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.stats import (
    BrokerStatsData,
    ConsumeStatsList,
    GetConsumeStatsInBrokerHeader,
    ViewBrokerStatsDataRequestHeader,
    decode_broker_stats,
    decode_consume_stats_list,
)


async def runtime_info(broker: Server) -> dict[str, str]:
    """Return the broker's runtime information: RocketMQ's key -> text."""
    return decode_kv_table(await broker.request_body(RequestCode.GET_BROKER_RUNTIME_INFO))


async def config(broker: Server) -> dict[str, str]:
    """Return the broker's settings: RocketMQ's key -> text."""
    return decode_properties_text(await broker.request_body(RequestCode.GET_BROKER_CONFIG))


async def update_config(broker: Server, values: Mapping[str, str]) -> None:
    """Change settings of the running broker."""
    await broker.request_body(RequestCode.UPDATE_BROKER_CONFIG, body=encode_properties_text(values))


async def stats(broker: Server, name: str, key: str) -> BrokerStatsData:
    """Return one counter; before its first count, the broker answers with an error of code 1."""
    key = counter_key(broker.pool.namespace, name, key)
    header = ViewBrokerStatsDataRequestHeader(name, key)
    body = await broker.request_body(RequestCode.VIEW_BROKER_STATS_DATA, header)
    return decode_broker_stats(body)


async def consume_stats(broker: Server, *, ordered_only: bool) -> ConsumeStatsList:
    """Return the offsets of all groups at the broker, in all topics or only in ordered ones."""
    header = GetConsumeStatsInBrokerHeader(is_order=ordered_only)
    body = await broker.request_body(RequestCode.GET_BROKER_CONSUME_STATS, header)
    found = decode_consume_stats_list(body)
    return replace(found, stats=own_entries(broker.pool.namespace, found.stats))


async def topic_groups(broker: Server, topic: str) -> list[str]:
    """Return the groups that consume the topic or have consumed it before."""
    header = QueryTopicConsumeByWhoRequestHeader(topic)
    body = await broker.request_body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    return with_plain_names(broker.pool.namespace, decode_group_list(body))
