"""JSON bodies of lite topics (200071, 200074 to 200078).

Source: LiteSubscriptionCtlRequestBody.java, LiteSubscriptionDTO.java, OffsetOption.java,
GetBrokerLiteInfoResponseBody.java, GetParentTopicInfoResponseBody.java,
GetLiteTopicInfoResponseBody.java, GetLiteClientInfoResponseBody.java,
GetLiteGroupInfoResponseBody.java, LiteLagInfo.java, ClientGroup.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kourou.protocol.bodies_stats import ConsumeOffset, TopicOffset


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
