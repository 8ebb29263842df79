"""The requests of administration about brokers: one request to one server, tried once.

All raise TransportError when no answer comes and RemoteError when the server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import counter_key, own_of, plain
from kourou.protocol.bodies import (
    BrokerStatsData,
    ConsumeStatsList,
    decode_broker_stats,
    decode_consume_stats_list,
    decode_group_list,
    decode_kv_table,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.headers_admin_broker import (
    GetConsumeStatsInBrokerHeader,
    ViewBrokerStatsDataRequestHeader,
)
from kourou.protocol.headers_admin_clients import QueryTopicConsumeByWhoRequestHeader
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text


async def runtime_info(broker: Server) -> dict[str, str]:
    """Return what the broker tells of itself: RocketMQ's names -> texts."""
    return decode_kv_table(await broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO))


async def config(broker: Server) -> dict[str, str]:
    """Return the broker's settings: RocketMQ's names -> texts."""
    return decode_properties_text(await broker.ask(RequestCode.GET_BROKER_CONFIG))


async def update_config(broker: Server, values: Mapping[str, str]) -> None:
    """Change settings of the broker while it runs."""
    await broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=encode_properties_text(values))


async def stats(broker: Server, name: str, key: str) -> BrokerStatsData:
    """Return one counter; one that nothing was counted in is an error of code 1."""
    key = counter_key(broker.pool.namespace, name, key)
    header = ViewBrokerStatsDataRequestHeader(name, key)
    return decode_broker_stats(await broker.ask(RequestCode.VIEW_BROKER_STATS_DATA, header))


async def consume_stats(broker: Server, *, ordered_only: bool) -> ConsumeStatsList:
    """Return where all groups of the broker stand, in all topics or in ordered ones only."""
    header = GetConsumeStatsInBrokerHeader(is_order=ordered_only)
    body = await broker.ask(RequestCode.GET_BROKER_CONSUME_STATS, header)
    told = decode_consume_stats_list(body)
    return replace(told, stats=own_of(broker.pool.namespace, told.stats))


async def topic_groups(broker: Server, topic: str) -> list[str]:
    """Return the groups that consume the topic now, or did before."""
    header = QueryTopicConsumeByWhoRequestHeader(topic)
    body = await broker.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    return plain(broker.pool.namespace, decode_group_list(body))
