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
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import RpcHeader
from kourou.protocol.json_records import (
    REQUIRED,
    FieldCodec,
    list_functions,
    record_functions,
)
from kourou.protocol.json_values import (
    as_list,
    as_object,
    get_text,
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


def _groups_of(producers: object, label: str) -> tuple[str, ...]:
    """Return the groups of the objects in a heartbeat's list of producers."""
    members = [as_object(producer, label) for producer in as_list(producers, label)]
    for member in members:
        if not get_text(member, "groupName"):
            raise MalformedBodyError("groupName is missing")
    return tuple(member["groupName"] for member in members)


_PRODUCERS: Final = FieldCodec(
    lambda groups: [{"groupName": group} for group in groups], _groups_of
)


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a client, with its subscriptions."""

    group: str = field(metadata={"wire": "groupName"} | REQUIRED)
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscriptions: Sequence[SubscriptionData] = field(
        default=(), metadata={"wire": "subscriptionDataSet"}
    )
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """The heartbeat that a client sends to each broker every 30 seconds.

    Attributes:
        producers: producer groups.
        fingerprint: hash of the subscriptions sent before, or 0.
        without_sub: subscriptions are omitted; those of an earlier heartbeat remain in effect.
    """

    client_id: str = field(metadata={"wire": "clientID"} | REQUIRED)
    producers: Sequence[str] = field(
        default=(), metadata={"wire": "producerDataSet", "codec": _PRODUCERS}
    )
    consumers: Sequence[ConsumerData] = field(default=(), metadata={"wire": "consumerDataSet"})
    fingerprint: int = field(default=0, metadata={"wire": "heartbeatFingerprint"})
    without_sub: bool = False


@dataclass(frozen=True, slots=True)
class CheckClientConfig:
    """The body of CHECK_CLIENT_CONFIG (46), which asks whether a subscription is valid."""

    client_id: str = field(metadata=REQUIRED)
    group: str = field(metadata=REQUIRED)
    subscription: SubscriptionData = field(metadata={"wire": "subscriptionData", "absent": {}})
    namespace: str | None = None


decode_heartbeat, encode_heartbeat = record_functions(HeartbeatData, "heartbeat")

decode_consumer_list, encode_consumer_list = list_functions("consumerIdList", str, "consumer list")

decode_check_client_config, encode_check_client_config = record_functions(
    CheckClientConfig, "client config"
)


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
