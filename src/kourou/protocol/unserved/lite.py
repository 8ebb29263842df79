"""Lite topics: codes 200070, 200071, 200073 to 200079.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header;
LiteSubscriptionCtlRequestBody.java, LiteSubscriptionDTO.java, OffsetOption.java,
GetBrokerLiteInfoResponseBody.java, GetParentTopicInfoResponseBody.java,
GetLiteTopicInfoResponseBody.java, GetLiteClientInfoResponseBody.java,
GetLiteGroupInfoResponseBody.java, LiteLagInfo.java, ClientGroup.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import Int, Long, RpcHeader
from kourou.protocol.request_spec import MESSAGES_CODEC, RequestSpec, record_codec
from kourou.protocol.stats import ConsumeOffset, TopicOffset


@dataclass(slots=True)
class PopLiteMessageRequestHeader(RpcHeader):
    """POP_LITE_MESSAGE (200070): pop from the lite topics to which the client subscribed.

    Attributes:
        topic: the parent topic.
        invisible_time: in milliseconds.
        poll_time: longest time to hold the request, in milliseconds from `born_time`.
        born_time: in epoch milliseconds.
    """

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    attempt_id: str | None = None


@dataclass(slots=True)
class PopLiteMessageResponseHeader:
    """Like `PopMessageResponseHeader`, without the number of remaining messages."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class LiteSubscriptionCtlRequestHeader(RpcHeader):
    """LITE_SUBSCRIPTION_CTL (200071); the subscriptions are in the body."""


@dataclass(slots=True)
class NotifyUnsubscribeLiteRequestHeader(RpcHeader):
    """NOTIFY_UNSUBSCRIBE_LITE (200073), broker to client, one-way: another client subscribed."""

    lite_topic: str
    consumer_group: str
    client_id: str


@dataclass(slots=True)
class GetParentTopicInfoRequestHeader:
    """GET_PARENT_TOPIC_INFO (200075); has a response body."""

    topic: str


@dataclass(slots=True)
class GetLiteTopicInfoRequestHeader:
    """GET_LITE_TOPIC_INFO (200076); has a response body."""

    parent_topic: str | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class GetLiteClientInfoRequestHeader:
    """GET_LITE_CLIENT_INFO (200077): up to `max_count` topics of a client; has a response body."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    max_count: Int = 1000


@dataclass(slots=True)
class GetLiteGroupInfoRequestHeader:
    """GET_LITE_GROUP_INFO (200078): lag in one lite topic, or the `top_k` largest lags.

    It has a response body.

    Attributes:
        lite_topic: empty or None for all lite topics.
    """

    group: str
    lite_topic: str | None = None
    top_k: Int = 0


@dataclass(slots=True)
class TriggerLiteDispatchRequestHeader:
    """TRIGGER_LITE_DISPATCH (200079): check again for messages for a group's clients."""

    group: str
    client_id: str | None = None


class LiteSubscriptionAction(StrEnum):
    """Change of a client's lite topics; the values and their order are those of the wire."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class OffsetOptionType(StrEnum):
    """Kind of the start position of a new subscription; values and order are those of the wire."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """Start position of a new subscription: number of a policy, queue offset, count or time."""

    type: OffsetOptionType = OffsetOptionType.POLICY
    value: int = 0


@dataclass(frozen=True, slots=True)
class LiteSubscription:
    """One client's subscription to lite topics of a parent topic.

    Attributes:
        lite_topic_set: names of lite topics; for a complete action, all of the client's.
        version: version of the client's set; the broker ignores an older one.
    """

    group: str
    topic: str
    client_id: str
    action: LiteSubscriptionAction = LiteSubscriptionAction.PARTIAL_ADD
    lite_topic_set: tuple[str, ...] | None = None
    offset_option: OffsetOption | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class LiteSubscriptionCtl:
    """The body of LITE_SUBSCRIPTION_CTL (200071)."""

    subscription_set: tuple[LiteSubscription, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerLiteInfo:
    """Response body of GET_BROKER_LITE_INFO (200074).

    Attributes:
        topic_meta: topic to the lifetime of its unused lite topics in minutes.
        group_meta: topic to its groups.
    """

    store_type: str | None = None
    max_lmq_num: int = 0
    current_lmq_num: int = 0
    lite_subscription_count: int = 0
    order_info_count: int = 0
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topic_meta: Mapping[str, int] | None = None
    group_meta: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class ParentTopicInfo:
    """Response body of GET_PARENT_TOPIC_INFO (200075); `ttl` is in minutes."""

    topic: str | None = None
    ttl: int = 0
    groups: tuple[str, ...] | None = None
    lmq_num: int = 0
    lite_topic_count: int = 0


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """A client of a group; `*` stands for all clients."""

    client_id: str
    group: str


@dataclass(frozen=True, slots=True)
class LiteTopicInfo:
    """Response body of GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscriber: tuple[ClientGroup, ...] | None = None
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = False


@dataclass(frozen=True, slots=True)
class LiteClientInfo:
    """Response body of GET_LITE_CLIENT_INFO (200077); an unknown count is -1."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: int = 0
    last_consume_time: int = 0
    lite_topic_count: int = 0
    lite_topic_set: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class LiteLagInfo:
    """A group's lag in one lite topic; the time is in epoch milliseconds, -1 for none."""

    lite_topic: str | None = None
    lag_count: int = 0
    earliest_unconsumed_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class LiteGroupInfo:
    """Response body of GET_LITE_GROUP_INFO (200078), for one lite topic or for all."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = -1
    total_lag_count: int = 0
    lite_topic_offset_wrapper: ConsumeOffset | None = None
    lag_count_top_k: tuple[LiteLagInfo, ...] | None = field(
        default=None, metadata={"wire": "lagCountTopK"}
    )
    lag_timestamp_top_k: tuple[LiteLagInfo, ...] | None = field(
        default=None, metadata={"wire": "lagTimestampTopK"}
    )


SPECS: Final = (
    RequestSpec(
        RequestCode.POP_LITE_MESSAGE,
        PopLiteMessageRequestHeader,
        PopLiteMessageResponseHeader,
        response_body=MESSAGES_CODEC,
    ),
    RequestSpec(
        RequestCode.LITE_SUBSCRIPTION_CTL,
        LiteSubscriptionCtlRequestHeader,
        request_body=record_codec(LiteSubscriptionCtl),
    ),
    RequestSpec(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, NotifyUnsubscribeLiteRequestHeader),
    RequestSpec(RequestCode.GET_BROKER_LITE_INFO, response_body=record_codec(BrokerLiteInfo)),
    RequestSpec(
        RequestCode.GET_PARENT_TOPIC_INFO,
        GetParentTopicInfoRequestHeader,
        response_body=record_codec(ParentTopicInfo),
    ),
    RequestSpec(
        RequestCode.GET_LITE_TOPIC_INFO,
        GetLiteTopicInfoRequestHeader,
        response_body=record_codec(LiteTopicInfo),
    ),
    RequestSpec(
        RequestCode.GET_LITE_CLIENT_INFO,
        GetLiteClientInfoRequestHeader,
        response_body=record_codec(LiteClientInfo),
    ),
    RequestSpec(
        RequestCode.GET_LITE_GROUP_INFO,
        GetLiteGroupInfoRequestHeader,
        response_body=record_codec(LiteGroupInfo),
    ),
    RequestSpec(RequestCode.TRIGGER_LITE_DISPATCH, TriggerLiteDispatchRequestHeader),
)
