"""Requests of connected clients: heartbeats, consumer lists, subscription checks.

Source: HeartbeatData.java, ConsumerData.java, SubscriptionData.java,
GetConsumerListByGroupResponseBody.java, CheckClientRequestBody.java, and the header classes of the
same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SUB_ALL, TAG_EXPRESSION, SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import RpcHeader
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_object,
    get_boolean,
    get_enum,
    get_integer,
    get_list,
    get_object,
    get_optional_text,
    get_text,
    get_texts,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec


@dataclass(slots=True)
class HeartbeatRequestHeader(RpcHeader):
    """HEART_BEAT (34); the heartbeat is in the body."""


@dataclass(slots=True)
class HeartbeatResponseHeader:
    """Support of short heartbeats by the broker, and whether the subscription changed."""

    is_support_heart_beat_v2: bool | None = field(
        default=None, metadata={"wire": "IS_SUPPORT_HEART_BEAT_V2"}
    )
    is_sub_change: bool | None = field(default=None, metadata={"wire": "IS_SUB_CHANGE"})


@dataclass(slots=True)
class UnregisterClientRequestHeader(RpcHeader):
    """UNREGISTER_CLIENT (35): the client leaves these groups."""

    client_id: str = field(metadata={"wire": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True)
class GetConsumerListByGroupRequestHeader(RpcHeader):
    """GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group's members; has a response body."""

    consumer_group: str


@dataclass(slots=True)
class NotifyConsumerIdsChangedRequestHeader(RpcHeader):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client: members changed, rebalance."""

    consumer_group: str


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a client, with its subscriptions."""

    group: str
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscriptions: Sequence[SubscriptionData] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """The heartbeat that a client sends to each broker every 30 seconds.

    Attributes:
        producers: producer groups.
        fingerprint: hash of the subscriptions sent before, or 0.
        without_sub: subscriptions are omitted; those of an earlier heartbeat remain in effect.
    """

    client_id: str
    producers: Sequence[str] = ()
    consumers: Sequence[ConsumerData] = ()
    fingerprint: int = 0
    without_sub: bool = False


@dataclass(frozen=True, slots=True)
class CheckClientConfig:
    """The body of CHECK_CLIENT_CONFIG (46), which asks whether a subscription is valid."""

    client_id: str
    group: str
    subscription: SubscriptionData
    namespace: str | None = None


def encode_heartbeat(data: HeartbeatData) -> bytes:
    """Return the body of HEART_BEAT (34)."""
    return dumps(
        {
            "clientID": data.client_id,
            "consumerDataSet": [_consumer_to_json(consumer) for consumer in data.consumers],
            "heartbeatFingerprint": data.fingerprint,
            "producerDataSet": [{"groupName": group} for group in data.producers],
            "withoutSub": data.without_sub,
        }
    )


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Return the heartbeat decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, has no client id, or a member has the
            wrong type.
    """
    data = as_object(loads(body), "heartbeat")
    return HeartbeatData(
        _required_text(data, "clientID"),
        tuple(
            _required_text(as_object(producer, "producerDataSet"), "groupName")
            for producer in get_list(data, "producerDataSet")
        ),
        tuple(
            _consumer_from_json(as_object(consumer, "consumerDataSet"))
            for consumer in get_list(data, "consumerDataSet")
        ),
        get_integer(data, "heartbeatFingerprint"),
        get_boolean(data, "withoutSub"),
    )


def subscription_to_json(subscription: SubscriptionData) -> dict[str, object]:
    """Return the JSON object of a subscription; its sets are sorted."""
    return {
        "classFilterMode": subscription.class_filter_mode,
        "codeSet": sorted(subscription.code_set),
        "expressionType": subscription.expression_type,
        "subString": subscription.sub_string,
        "subVersion": subscription.sub_version,
        "tagsSet": sorted(subscription.tags_set),
        "topic": subscription.topic,
    }


def subscription_from_json(data: Json) -> SubscriptionData:
    """Return the subscription of a JSON object.

    Raises:
        MalformedBodyError: the topic is missing, or a member has the wrong type.
    """
    return SubscriptionData(
        _required_text(data, "topic"),
        get_text(data, "subString", SUB_ALL),
        frozenset(get_texts(data, "tagsSet")),
        frozenset(as_integer(code, "codeSet") for code in get_list(data, "codeSet")),
        get_integer(data, "subVersion"),
        # Old clients omit the type; an empty one means the same.
        get_text(data, "expressionType") or TAG_EXPRESSION,
        get_boolean(data, "classFilterMode"),
    )


def encode_consumer_list(client_ids: Sequence[str]) -> bytes:
    """Return the response body of GET_CONSUMER_LIST_BY_GROUP (38)."""
    return dumps({"consumerIdList": list(client_ids)})


def decode_consumer_list(body: bytes) -> list[str]:
    """Return the client ids decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object with an array of texts.
    """
    return get_texts(as_object(loads(body), "consumer list"), "consumerIdList")


def encode_check_client_config(data: CheckClientConfig) -> bytes:
    """Return the body of CHECK_CLIENT_CONFIG (46)."""
    return dumps(
        {
            "clientId": data.client_id,
            "group": data.group,
            "namespace": data.namespace,
            "subscriptionData": subscription_to_json(data.subscription),
        }
    )


def decode_check_client_config(body: bytes) -> CheckClientConfig:
    """Return the check decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member is missing or has the wrong
            type.
    """
    data = as_object(loads(body), "client config")
    return CheckClientConfig(
        _required_text(data, "clientId"),
        _required_text(data, "group"),
        subscription_from_json(get_object(data, "subscriptionData")),
        get_optional_text(data, "namespace"),
    )


def _consumer_to_json(consumer: ConsumerData) -> dict[str, object]:
    return {
        "consumeFromWhere": consumer.consume_from_where.value,
        "consumeType": consumer.consume_type.value,
        "groupName": consumer.group,
        "messageModel": consumer.message_model.value,
        "subscriptionDataSet": [
            subscription_to_json(subscription) for subscription in consumer.subscriptions
        ],
        "unitMode": consumer.unit_mode,
    }


def _consumer_from_json(data: Json) -> ConsumerData:
    return ConsumerData(
        _required_text(data, "groupName"),
        get_enum(data, "consumeType", ConsumeType.PASSIVELY),
        get_enum(data, "messageModel", MessageModel.CLUSTERING),
        get_enum(data, "consumeFromWhere", ConsumeFromWhere.LAST_OFFSET),
        tuple(
            subscription_from_json(as_object(subscription, "subscriptionDataSet"))
            for subscription in get_list(data, "subscriptionDataSet")
        ),
        get_boolean(data, "unitMode"),
    )


def _required_text(data: Json, name: str) -> str:
    text = get_text(data, name)
    if not text:
        raise MalformedBodyError(f"{name} is missing")
    return text


SPECS: Final = (
    RequestSpec(
        RequestCode.HEART_BEAT,
        HeartbeatRequestHeader,
        HeartbeatResponseHeader,
        request_body=BodyCodec(decode_heartbeat, encode_heartbeat),
        body_bytes_max=192 * 1024,  # more than a thousand subscriptions
    ),
    RequestSpec(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader),
    RequestSpec(
        RequestCode.CHECK_CLIENT_CONFIG,
        request_body=BodyCodec(decode_check_client_config, encode_check_client_config),
        body_bytes_max=128 * 1024,
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        GetConsumerListByGroupRequestHeader,
        response_body=BodyCodec(decode_consumer_list, encode_consumer_list),
    ),
    RequestSpec(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequestHeader),
)
