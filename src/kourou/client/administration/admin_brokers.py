"""AdminClient methods for brokers: configuration and statistics.

Source: StatsAllSubCommand.java, BrokerConsumeStatsSubCommad.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kourou.client.administration import admin_groups, admin_topics
from kourou.client.administration.admin_calls import AdminCalls, Server, call_all
from kourou.client.administration.plain_names import (
    counter_key,
    own_entries,
    own_names,
)
from kourou.errors import RemoteError, RemoteSystemError, TopicNotFoundError, UsageError
from kourou.model.topic import is_dlq_topic, is_retry_topic
from kourou.protocol.brokers import HARuntimeInfo
from kourou.protocol.codes import RequestCode
from kourou.protocol.json_records import decode_record
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
from kourou.protocol.topics import decode_topic_list

TOPICS_AT_A_TIME: Final = 16
"""Maximum number of topics whose rates are requested concurrently."""

_PUT: Final = "TOPIC_PUT_NUMS"
_GET: Final = "GROUP_GET_NUMS"
_NO_COUNTS: Final = BrokerStatsData()


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Rates of a topic and of one of its consumer groups, summed over all brokers.

    Attributes:
        topic: the topic.
        group: the consumer group; None if no group has consumed the topic.
        lag: messages stored but not committed by the group; None without a group, or if a broker
            did not report it.
        in_tps: messages stored per second, over the last minute.
        out_tps: messages delivered to the group per second, over the last minute.
        in_24h: messages stored in the last 24 hours, or since the broker's start.
        out_24h: messages delivered to the group in that time.
    """

    topic: str
    group: str | None
    lag: int | None
    in_tps: float
    out_tps: float
    in_24h: int
    out_24h: int


class BrokerAdmin(AdminCalls):
    """Describes and configures brokers."""

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return the runtime information of the broker at `host:port`: RocketMQ's key -> text."""
        self._instance.check_open()
        return await runtime_info(self._server(address))

    async def ha_status(self, address: str) -> HARuntimeInfo:
        """Return the state of replication of the broker at `host:port`.

        A master reports the end of its log and its slaves; a slave the end of its own log, and its
        connection to the master. Positions are in bytes of the log.
        """
        self._instance.check_open()
        body = await self._server(address).request_body(RequestCode.GET_BROKER_HA_STATUS)
        return decode_record(HARuntimeInfo, body)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at `host:port`: RocketMQ's key -> text."""
        self._instance.check_open()
        return await broker_config(self._server(address))

    async def update_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change settings of the running broker at `host:port`.

        A Kourou broker changes either all settings or none. It refuses unknown settings and those
        that cannot change while it runs, and loses the changes when it stops. A Java broker writes
        the changes to its configuration file, and answers with success also for unknown settings.

        Args:
            address: the broker's address.
            values: RocketMQ's key -> text.

        Raises:
            UsageError: `values` is empty, or a key is blank.
            NoPermissionError: a setting cannot change while the broker runs.
            RemoteSystemError: a key is unknown, or a value is out of range.
        """
        self._instance.check_open()
        if not values or not all(name.strip() for name in values):
            raise UsageError("name at least one setting to change, and its value")
        await update_broker_config(self._server(address), values)

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Return one counter of the broker at `host:port` over the last minute, hour and day.

        Args:
            address: the broker's address.
            name: one of RocketMQ's sets of counters, such as TOPIC_PUT_NUMS or GROUP_GET_NUMS.
            key: the counter in the set, such as `orders` or `orders@billing`.

        Raises:
            RemoteSystemError: there is no such counter, as before its first count.
        """
        self._instance.check_open()
        return await broker_stats(self._server(address), name, key)

    async def broker_consume_stats(
        self, address: str, *, ordered_only: bool = False
    ) -> ConsumeStatsList:
        """Return the committed offsets of all groups at the broker at `host:port`.

        Args:
            address: the broker's address.
            ordered_only: only those in topics that were declared ordered.
        """
        self._instance.check_open()
        return await broker_consume_stats(self._server(address), ordered_only=ordered_only)

    async def all_stats(self, topics: Iterable[str] | None = None) -> list[TopicRates]:
        """Return the rates of topics, one row for each topic and group, sorted.

        Topics that are deleted during the call are left out.

        Args:
            topics: the topics; None: all except retry and dead-letter topics.
        """
        if topics is None:
            code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            answer = await self._request_name_server(code)
            names = own_names(self._config.namespace, decode_topic_list(answer.body))
            topics = [one for one in names if not is_retry_topic(one) and not is_dlq_topic(one)]
        semaphore = asyncio.Semaphore(TOPICS_AT_A_TIME)

        async def rates_of(topic: str) -> list[TopicRates]:
            async with semaphore:
                try:
                    return await _rates(topic, await self._topic_masters(topic))
                except TopicNotFoundError:
                    return []

        found = await asyncio.gather(*map(rates_of, sorted(set(topics))))
        return [row for rows in found for row in rows]


async def _rates(topic: str, masters: Mapping[str, Server]) -> list[TopicRates]:
    """Return the rows of one topic."""
    put, listed = await asyncio.gather(
        _total(masters, _PUT, topic),
        call_all(masters, lambda server: admin_topics.topic_groups(server, topic)),
    )
    groups = sorted({group for names in listed.values() for group in names})
    if not groups:
        return [TopicRates(topic, None, None, put.tps, 0.0, put.day, 0)]
    rows = await asyncio.gather(
        *(
            asyncio.gather(_total(masters, _GET, f"{topic}@{group}"), _lag(masters, group, topic))
            for group in groups
        )
    )
    return [
        TopicRates(topic, group, lag, put.tps, delivered.tps, put.day, delivered.day)
        for group, (delivered, lag) in zip(groups, rows, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Rate:
    """Sum of a counter over all brokers: per second of the last minute, and of 24 hours."""

    tps: float
    day: int


async def _total(masters: Mapping[str, Server], name: str, key: str) -> _Rate:
    """Return the sum of a counter."""
    parts = (await call_all(masters, lambda server: _stats_or_none(server, name, key))).values()
    return _Rate(sum(part.minute.tps for part in parts), sum(map(_day_sum, parts)))


async def _stats_or_none(server: Server, name: str, key: str) -> BrokerStatsData:
    try:
        return await broker_stats(server, name, key)
    except RemoteSystemError:
        return _NO_COUNTS  # brokers answer with this error if there is no such counter


def _day_sum(stats: BrokerStatsData) -> int:
    """Return the count of 24 hours. A broker samples it each hour; before, use shorter periods."""
    return stats.day.sum or stats.hour.sum or stats.minute.sum


async def _lag(masters: Mapping[str, Server], group: str, topic: str) -> int | None:
    """Return the number of messages not committed by the group; None if a broker refuses."""
    try:
        parts = await call_all(
            masters, lambda server: admin_groups.consume_stats(server, group, topic)
        )
    except RemoteError:
        return None
    return sum(
        max(0, at.broker_offset - at.consumer_offset)
        for part in parts.values()
        for at in part.offsets.values()
    )


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def runtime_info(broker: Server) -> dict[str, str]:
    """Return the broker's runtime information: RocketMQ's key -> text."""
    return decode_kv_table(await broker.request_body(RequestCode.GET_BROKER_RUNTIME_INFO))


async def broker_config(broker: Server) -> dict[str, str]:
    """Return the broker's settings: RocketMQ's key -> text."""
    return decode_properties_text(await broker.request_body(RequestCode.GET_BROKER_CONFIG))


async def update_broker_config(broker: Server, values: Mapping[str, str]) -> None:
    """Change settings of the running broker."""
    await broker.request_body(RequestCode.UPDATE_BROKER_CONFIG, body=encode_properties_text(values))


async def broker_stats(broker: Server, name: str, key: str) -> BrokerStatsData:
    """Return one counter; before its first count, the broker answers with an error of code 1."""
    key = counter_key(broker.pool.namespace, name, key)
    header = ViewBrokerStatsDataRequestHeader(name, key)
    body = await broker.request_body(RequestCode.VIEW_BROKER_STATS_DATA, header)
    return decode_broker_stats(body)


async def broker_consume_stats(broker: Server, *, ordered_only: bool) -> ConsumeStatsList:
    """Return the offsets of all groups at the broker, in all topics or only in ordered ones."""
    header = GetConsumeStatsInBrokerHeader(is_order=ordered_only)
    body = await broker.request_body(RequestCode.GET_BROKER_CONSUME_STATS, header)
    found = decode_consume_stats_list(body)
    return replace(found, stats=own_entries(broker.pool.namespace, found.stats))
