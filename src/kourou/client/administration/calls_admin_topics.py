"""Administration requests for topics: each coroutine sends one request, without retries.

All raise TransportError if no answer arrives and RemoteError if the server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import own_entries, with_plain_names
from kourou.errors import RequestNotSupportedError, TopicNotFoundError
from kourou.model.topic import AUTO_CREATE_TOPIC, TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.connections import QueryTopicConsumeByWhoRequestHeader, decode_group_list
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
)


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
    header = GetTopicStatsInfoRequestHeader(topic)
    body = await broker.request_body(RequestCode.GET_TOPIC_STATS_INFO, header)
    return with_plain_names(broker.pool.namespace, decode_topic_stats(body))


async def topic_groups(broker: Server, topic: str) -> list[str]:
    """Return the groups that consume the topic at one broker, or have committed there."""
    header = QueryTopicConsumeByWhoRequestHeader(topic)
    body = await broker.request_body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    return with_plain_names(broker.pool.namespace, decode_group_list(body))
