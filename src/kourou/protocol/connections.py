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
from kourou.protocol.codes import LanguageCode, RequestCode, language_of
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import RpcHeader, TopicHeader
from kourou.protocol.json_records import (
    OPTIONAL,
    FieldCodec,
    from_json,
    list_functions,
    record_functions,
    to_json,
)
from kourou.protocol.json_values import (
    as_list,
    as_object,
    get_object,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec
from kourou.protocol.topics import TOPIC_LIST_CODEC


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


def _language(value: object, _: str) -> LanguageCode:
    """Return the language of a name or an ordinal; OTHER for anything else."""
    return language_of(value) if isinstance(value, str | int) else LanguageCode.OTHER


_LANGUAGE: Final = FieldCodec(lambda language: language.name, _language)


@dataclass(frozen=True, slots=True)
class Connection:
    """One connected client.

    Attributes:
        client_addr: `host:port` of its socket.
        version: ordinal of its version, see `kourou.protocol.codes.VERSION`.
    """

    client_id: str = field(metadata=OPTIONAL)
    client_addr: str = field(metadata=OPTIONAL)
    language: LanguageCode = field(default=LanguageCode.OTHER, metadata={"codec": _LANGUAGE})
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

    connections: list[Connection] = field(default_factory=list, metadata={"wire": "connectionSet"})
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscriptions: Mapping[str, SubscriptionData] = field(
        default_factory=dict, metadata={"wire": "subscriptionTable"}
    )
    differences: Sequence[str] = field(
        default=(), metadata={"wire": "kourouDifferences", "omit_empty": True}
    )


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """One connected producer.

    Attributes:
        remote_ip: address of its socket as Java writes it, `/host:port`.
        last_update_timestamp: time of its last heartbeat in epoch milliseconds.
    """

    client_id: str = field(metadata=OPTIONAL)
    remote_ip: str = field(metadata={"wire": "remoteIP"} | OPTIONAL)
    language: LanguageCode = field(default=LanguageCode.OTHER, metadata={"codec": _LANGUAGE})
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """A group's subscription to a topic; None if it is not connected or not subscribed."""

    group: str = field(metadata=OPTIONAL)
    topic: str | None = field(default=None, metadata={"blank": ""})
    subscription: SubscriptionData | None = field(
        default=None, metadata={"wire": "subscriptionData"}
    )


decode_consumer_connection, encode_consumer_connection = record_functions(
    ConsumerConnection, "consumer connection"
)

decode_producer_connection, encode_producer_connection = list_functions(
    "connectionSet", Connection, "producer connection"
)


def encode_producer_table(producers: Mapping[str, Sequence[ProducerInfo]]) -> bytes:
    """Return the response body of GET_ALL_PRODUCER_INFO (328): producers by their group."""
    return dumps({"data": {group: list(map(to_json, producers[group])) for group in producers}})


def decode_producer_table(body: bytes) -> dict[str, list[ProducerInfo]]:
    """Return the producers decoded from a body, by their group.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "producer table")
    return {
        group: [from_json(ProducerInfo, producer, "data") for producer in as_list(members, "data")]
        for group, members in get_object(data, "data").items()
    }


decode_group_list, encode_group_list = list_functions("groupList", str, "group list")

decode_group_subscription, encode_group_subscription = record_functions(
    GroupSubscription, "group subscription"
)


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
