"""Requests of administration about topics: each coroutine asks one server, once.

All raise TransportError when no answer comes and RemoteError when the server refuses.
"""

from __future__ import annotations

from kourou.client.admin_calls import Server
from kourou.model.topic import AUTO_CREATE_TOPIC, TopicConfig
from kourou.protocol.bodies import TopicStatsTable, decode_topic_config, decode_topic_stats
from kourou.protocol.codes import RequestCode
from kourou.protocol.headers_admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)


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
