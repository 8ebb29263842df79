"""The requests of administration, one coroutine each: one request to one server, tried once.

All raise TransportError when no answer comes and RemoteError when the server refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import AUTO_CREATE_TOPIC, TopicConfig
from kourou.protocol.bodies import (
    ConsumeStats,
    SubscriptionGroupTable,
    TopicStatsTable,
    decode_consume_stats,
    decode_consumer_list,
    decode_kv_table,
    decode_subscription_group_table,
    decode_topic_config,
    decode_topic_stats,
    encode_subscription_group,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.headers_admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from kourou.protocol.headers_consume import GetConsumerListByGroupRequestHeader
from kourou.remoting.check import raise_for_response
from kourou.remoting.pool import ConnectionPool


@dataclass(frozen=True, slots=True)
class Server:
    """One server to ask: by which connections, where, and how long to wait for each answer."""

    pool: ConnectionPool
    address: str
    timeout_s: float

    async def ask(self, code: int, header: object | None = None, body: bytes = b"") -> bytes:
        """Return the body of the answer."""
        answer: RemotingCommand = await self.pool.request(
            self.address, request(code, header, body), self.timeout_s
        )
        raise_for_response(answer)
        return answer.body


async def runtime_info(broker: Server) -> dict[str, str]:
    """Return what the broker tells of itself: RocketMQ's names -> texts."""
    return decode_kv_table(await broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO))


async def create_topic(broker: Server, config: TopicConfig) -> None:
    """Create the topic, or change it: attributes given are set, others stay."""
    header = CreateTopicRequestHeader(
        topic=config.name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(f"+{name}={value}" for name, value in config.attributes.items()),
    )
    await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def delete_topic(broker: Server, topic: str) -> None:
    """Delete the topic and its messages on one broker."""
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))


async def forget_topic(name_server: Server, topic: str) -> None:
    """Delete the topic's route; a broker that still has the topic will register it again."""
    await name_server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicRequestHeader(topic))


async def topic_config(broker: Server, topic: str) -> TopicConfig:
    """Return what one broker knows of the topic."""
    header = GetTopicConfigRequestHeader(topic)
    return decode_topic_config(await broker.ask(RequestCode.GET_TOPIC_CONFIG, header))


async def topic_stats(broker: Server, topic: str) -> TopicStatsTable:
    """Return what the topic's queues on one broker hold."""
    header = GetTopicStatsInfoRequestHeader(topic)
    return decode_topic_stats(await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, header))


async def group_table(broker: Server) -> SubscriptionGroupTable:
    """Return all consumer groups of one broker."""
    header = GetAllSubscriptionGroupRequestHeader()
    body = await broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
    return decode_subscription_group_table(body)


async def create_group(broker: Server, group: SubscriptionGroup) -> None:
    """Create the group on one broker, or change it."""
    body = encode_subscription_group(group)
    await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def delete_group(broker: Server, group: str, *, clean_offsets: bool) -> None:
    """Delete the group on one broker, its committed offsets too if so asked."""
    header = DeleteSubscriptionGroupRequestHeader(group, clean_offset=clean_offsets)
    await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


async def consume_stats(broker: Server, group: str) -> ConsumeStats:
    """Return where the group stands in the queues of one broker."""
    header = GetConsumeStatsRequestHeader(group)
    return decode_consume_stats(await broker.ask(RequestCode.GET_CONSUME_STATS, header))


async def consumer_ids(broker: Server, group: str) -> list[str]:
    """Return the client ids of the group's members that one broker knows."""
    header = GetConsumerListByGroupRequestHeader(group)
    body = await broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    return decode_consumer_list(body)
