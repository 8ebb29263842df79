"""Information about connected clients: consumers, producers, groups of a topic.

Source: ConsumerConnection.java, ProducerConnection.java, ProducerTableInfo.java, Connection.java,
ProducerInfo.java, GroupList.java, QuerySubscriptionResponseBody.java, and the header classes of the
same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import subscription_from_json, subscription_to_json
from kourou.protocol.codes import LanguageCode, RequestCode, language_of
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import RpcHeader, TopicHeader
from kourou.protocol.json_values import (
    Json,
    as_list,
    as_object,
    get_enum,
    get_integer,
    get_list,
    get_object,
    get_text,
    get_texts,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec
from kourou.protocol.topics import TOPIC_LIST_CODEC

_DIFFERENCES: Final = "kourouDifferences"


@dataclass(slots=True)
class GetConsumerConnectionListRequestHeader(RpcHeader):
    """GET_CONSUMER_CONNECTION_LIST (203): a group's connected members; has a response body."""

    consumer_group: str


@dataclass(slots=True)
class GetProducerConnectionListRequestHeader(RpcHeader):
    """GET_PRODUCER_CONNECTION_LIST (204): a group's connected producers; has a response body."""

    producer_group: str


@dataclass(slots=True)
class GetAllProducerInfoRequestHeader:
    """GET_ALL_PRODUCER_INFO (328): all producers of the broker; has a response body."""


@dataclass(slots=True)
class QueryTopicConsumeByWhoRequestHeader(TopicHeader):
    """QUERY_TOPIC_CONSUME_BY_WHO (300): the groups that consume a topic; has a response body."""

    topic: str


@dataclass(slots=True)
class QueryTopicsByConsumerRequestHeader(RpcHeader):
    """QUERY_TOPICS_BY_CONSUMER (343): the topics that a group consumes; has a response body."""

    group: str


@dataclass(slots=True)
class QuerySubscriptionByConsumerRequestHeader(TopicHeader):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345): a group's subscription; has a response body."""

    group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """One connected client.

    Attributes:
        client_addr: `host:port` of its socket.
        version: ordinal of its version, see `kourou.protocol.codes.VERSION`.
    """

    client_id: str
    client_addr: str
    language: LanguageCode = LanguageCode.OTHER
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """The connected members of a consumer group and their subscriptions.

    Attributes:
        subscriptions: by topic.
        differences: one text for each topic to which the members subscribe differently; it names
            the members and their subscriptions. Set by Kourou's brokers, ignored by RocketMQ's
            clients.
    """

    connections: Sequence[Connection] = ()
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    differences: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """One connected producer.

    Attributes:
        remote_ip: address of its socket as Java writes it, `/host:port`.
        last_update_timestamp: time of its last heartbeat in epoch milliseconds.
    """

    client_id: str
    remote_ip: str
    language: LanguageCode = LanguageCode.OTHER
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """A group's subscription to a topic; None if it is not connected or not subscribed."""

    group: str
    topic: str | None = None
    subscription: SubscriptionData | None = None


def encode_consumer_connection(connection: ConsumerConnection) -> bytes:
    """Return the response body of GET_CONSUMER_CONNECTION_LIST (203)."""
    members: dict[str, object] = {
        "connectionSet": [_connection_to_json(client) for client in connection.connections],
        "consumeFromWhere": connection.consume_from_where.value,
        "consumeType": connection.consume_type.value,
        "messageModel": connection.message_model.value,
        "subscriptionTable": {
            topic: subscription_to_json(subscription)
            for topic, subscription in connection.subscriptions.items()
        },
    }
    if connection.differences:
        members[_DIFFERENCES] = list(connection.differences)
    return dumps(members)


def decode_consumer_connection(body: bytes) -> ConsumerConnection:
    """Return the members decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "consumer connection")
    return ConsumerConnection(
        _connections(data),
        get_enum(data, "consumeType", ConsumeType.PASSIVELY),
        get_enum(data, "messageModel", MessageModel.CLUSTERING),
        get_enum(data, "consumeFromWhere", ConsumeFromWhere.LAST_OFFSET),
        {
            topic: subscription_from_json(as_object(value, "subscriptionTable"))
            for topic, value in get_object(data, "subscriptionTable").items()
        },
        tuple(get_texts(data, _DIFFERENCES)),
    )


def encode_producer_connection(connections: Sequence[Connection]) -> bytes:
    """Return the response body of GET_PRODUCER_CONNECTION_LIST (204)."""
    return dumps({"connectionSet": [_connection_to_json(client) for client in connections]})


def decode_producer_connection(body: bytes) -> list[Connection]:
    """Return the producers decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    return _connections(as_object(loads(body), "producer connection"))


def encode_producer_table(producers: Mapping[str, Sequence[ProducerInfo]]) -> bytes:
    """Return the response body of GET_ALL_PRODUCER_INFO (328): producers by their group."""
    return dumps(
        {
            "data": {
                group: [
                    {
                        "clientId": producer.client_id,
                        "language": producer.language.name,
                        "lastUpdateTimestamp": producer.last_update_timestamp,
                        "remoteIP": producer.remote_ip,
                        "version": producer.version,
                    }
                    for producer in members
                ]
                for group, members in producers.items()
            }
        }
    )


def decode_producer_table(body: bytes) -> dict[str, list[ProducerInfo]]:
    """Return the producers decoded from a body, by their group.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "producer table")
    return {
        group: [
            _producer_from_json(as_object(producer, "data"))
            for producer in as_list(members, "data")
        ]
        for group, members in get_object(data, "data").items()
    }


def encode_group_list(groups: Sequence[str]) -> bytes:
    """Return the response body of QUERY_TOPIC_CONSUME_BY_WHO (300)."""
    return dumps({"groupList": list(groups)})


def decode_group_list(body: bytes) -> list[str]:
    """Return the groups decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object with an array of texts.
    """
    return get_texts(as_object(loads(body), "group list"), "groupList")


def encode_group_subscription(subscription: GroupSubscription) -> bytes:
    """Return the response body of QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""
    subscription_data = subscription.subscription
    return dumps(
        {
            "group": subscription.group,
            "subscriptionData": None
            if subscription_data is None
            else subscription_to_json(subscription_data),
            "topic": subscription.topic,
        }
    )


def decode_group_subscription(body: bytes) -> GroupSubscription:
    """Return the subscription decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "group subscription")
    subscription_data = data.get("subscriptionData")
    return GroupSubscription(
        get_text(data, "group"),
        get_text(data, "topic") or None,
        None
        if subscription_data is None
        else subscription_from_json(as_object(subscription_data, "subscriptionData")),
    )


def _connection_to_json(connection: Connection) -> dict[str, object]:
    return {
        "clientAddr": connection.client_addr,
        "clientId": connection.client_id,
        "language": connection.language.name,
        "version": connection.version,
    }


def _connections(data: Json) -> list[Connection]:
    """Return the clients of the member connectionSet."""
    members = [as_object(client, "connectionSet") for client in get_list(data, "connectionSet")]
    return [
        Connection(
            get_text(client, "clientId"),
            get_text(client, "clientAddr"),
            _language(client),
            get_integer(client, "version"),
        )
        for client in members
    ]


def _producer_from_json(data: Json) -> ProducerInfo:
    return ProducerInfo(
        get_text(data, "clientId"),
        get_text(data, "remoteIP"),
        _language(data),
        get_integer(data, "version"),
        get_integer(data, "lastUpdateTimestamp"),
    )


def _language(data: Json) -> LanguageCode:
    """Return the member language, a name or an ordinal; OTHER for anything else."""
    value = data.get("language")
    return language_of(value) if isinstance(value, str | int) else LanguageCode.OTHER


SPECS: Final = (
    RequestSpec(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        GetConsumerConnectionListRequestHeader,
        response_body=BodyCodec(decode_consumer_connection, encode_consumer_connection),
    ),
    RequestSpec(
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        GetProducerConnectionListRequestHeader,
        response_body=BodyCodec(decode_producer_connection, encode_producer_connection),
    ),
    RequestSpec(
        RequestCode.GET_ALL_PRODUCER_INFO,
        GetAllProducerInfoRequestHeader,
        response_body=BodyCodec(decode_producer_table, encode_producer_table),
    ),
    RequestSpec(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        QueryTopicConsumeByWhoRequestHeader,
        response_body=BodyCodec(decode_group_list, encode_group_list),
    ),
    RequestSpec(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        QueryTopicsByConsumerRequestHeader,
        response_body=TOPIC_LIST_CODEC,
    ),
    RequestSpec(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        QuerySubscriptionByConsumerRequestHeader,
        response_body=BodyCodec(decode_group_subscription, encode_group_subscription),
    ),
)
